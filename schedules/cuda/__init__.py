"""Rules for NVIDIA GPUs: kernel templates with holes for the traced arithmetic."""

from ..rule import GpuRule
from .attention import AttentionRule
from .columns import ColumnSumsRule
from .elementwise import ElementwiseRule
from .fallback import FallbackRule
from .linear import TensorCoreLinearRule
from .rows import RowsRule
from .serial import SerialRule

# First match wins.
CUDA_RULES: tuple[GpuRule, ...] = (
    SerialRule(),
    TensorCoreLinearRule(),
    AttentionRule(),
    ElementwiseRule(),
    RowsRule(),
    ColumnSumsRule(),
    FallbackRule(),
)
