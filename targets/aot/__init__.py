"""Programs without runtime: kernels with a plain C ABI, a driver in C, a fixed arena.

`compile_bare` makes them from the module that TVM's runtime would otherwise run; `library` links
them to a shared library, and `ibert_tvm.targets.bare_metal` packs them for microcontrollers.
"""

from .compile import arena_alignment, compile_bare, portable_description
from .header import ABI_VERSION
from .interface import Interface, ShapeSpec, TensorSpec
from .model import BareCall, BareFunction, BareKernel, BareModel, KernelParameter

__all__ = [
    "ABI_VERSION",
    "BareCall",
    "BareFunction",
    "BareKernel",
    "BareModel",
    "Interface",
    "KernelParameter",
    "ShapeSpec",
    "TensorSpec",
    "arena_alignment",
    "compile_bare",
    "portable_description",
]
