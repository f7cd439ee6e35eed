"""Programs without runtime: kernels with a plain C ABI, a driver in C, a fixed arena.

`compile_bare` makes them from the module that TVM's runtime would otherwise run; `library` links
them to a shared library, and `ibert_tvm.targets.bare_metal` packs them for microcontrollers.
"""

from .compile import compile_bare, portable_description
from .interface import Interface, ShapeSpec, TensorSpec
from .model import BareModel, TextSources
