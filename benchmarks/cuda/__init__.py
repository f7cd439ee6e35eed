"""The paper's sixteen cells on an NVIDIA GPU, and an estimate of them without one."""
