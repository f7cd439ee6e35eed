"""Tensor intrinsics: what one instruction computes, and the instruction itself.

Every intrinsic is a pair of functions over the same buffers: the *description* states its integer
semantics with plain loops (this is what tensorisation matches and what the tests compare with), the
*implementation* is the instruction. Both are parsed from text on first use: decorating functions at
import time costs seconds when torch is installed.

``dot`` holds the dot products, with one file per family of instructions; ``reduction`` and
``packing`` are written in what LLVM has for every processor.
"""

from .dot import DotIntrinsic, dot_intrinsic, intrinsic_sources, known_intrinsics
from .packing import (
    LOADED_BYTES,
    key_packing_intrinsic,
    key_packing_sources,
    value_packing_intrinsic,
    value_packing_sources,
)
from .reduction import reduction_intrinsic, reduction_sources

__all__ = [
    "LOADED_BYTES",
    "DotIntrinsic",
    "dot_intrinsic",
    "intrinsic_sources",
    "key_packing_intrinsic",
    "key_packing_sources",
    "known_intrinsics",
    "reduction_intrinsic",
    "reduction_sources",
    "value_packing_intrinsic",
    "value_packing_sources",
]
