"""Passes from the integer program to kernels, one per file; `pipeline` holds their order."""

from .pipeline import Lowered, lower_to_kernels
from .program import IntegerProgram
from .specialise_shapes import function_name

__all__ = ["IntegerProgram", "Lowered", "function_name", "lower_to_kernels"]
