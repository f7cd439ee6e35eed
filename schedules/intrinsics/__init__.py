"""Tensor intrinsics: what one instruction computes, and the instruction itself.

Every intrinsic is a pair of functions over the same buffers: the *description* states its integer
semantics with plain loops (this is what tensorisation matches and what the tests compare with), the
*implementation* is the instruction. Both are parsed from text on first use: decorating functions at
import time costs seconds when torch is installed.

``dot`` holds the dot products, with one file per family of instructions, ``matrix`` those that
multiply several rows at once; ``reduction``, ``packing`` and ``zipping`` are written in what LLVM
has for every processor.
"""

from .dot import DotIntrinsic, dot_intrinsic, intrinsic_sources, known_intrinsics
from .matrix import drain_intrinsic, drain_sources
from .packing import (
    LOADED_BYTES,
    key_packing_intrinsic,
    key_packing_sources,
    value_packing_intrinsic,
    value_packing_sources,
)
from .reduction import reduction_intrinsic, reduction_sources
from .zipping import (
    zipped_key_intrinsic,
    zipped_key_sources,
    zipped_value_intrinsic,
    zipped_value_sources,
)

__all__ = [
    "LOADED_BYTES",
    "DotIntrinsic",
    "dot_intrinsic",
    "drain_intrinsic",
    "drain_sources",
    "intrinsic_sources",
    "key_packing_intrinsic",
    "key_packing_sources",
    "known_intrinsics",
    "reduction_intrinsic",
    "reduction_sources",
    "value_packing_intrinsic",
    "value_packing_sources",
    "zipped_key_intrinsic",
    "zipped_key_sources",
    "zipped_value_intrinsic",
    "zipped_value_sources",
]
