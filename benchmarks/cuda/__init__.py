"""The paper's sixteen cells on an NVIDIA GPU."""
