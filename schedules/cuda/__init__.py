"""Rules for NVIDIA GPUs: skeletons of threads and shared memory round the traced arithmetic."""

from .fallback import FallbackRule
from .rule import GpuRule

__all__ = ["CUDA_RULES"]

# First match wins.
CUDA_RULES: tuple[GpuRule, ...] = (FallbackRule(),)
