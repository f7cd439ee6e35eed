"""NVIDIA GPUs: descriptions, device code, the CUDA compiler, and the audit of its result."""
