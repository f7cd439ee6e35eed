"""Passes from the integer program to kernels, one per file; `pipeline` lists them in order."""

from .pipeline import Lowered, TargetKind, lower_to_kernels, phases_of
from .program import IntegerProgram
from .specialise_shapes import function_name
