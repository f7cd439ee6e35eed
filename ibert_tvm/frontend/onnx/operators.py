"""All translations, registered by importing the modules that hold them."""

from __future__ import annotations

from ibert_tvm.frontend.onnx import (
    operators_elementwise,
    operators_fused,
    operators_layout,
    operators_matrix,
)
from ibert_tvm.frontend.onnx.translator import OPERATORS

__all__ = ["MODULES", "OPERATORS"]

MODULES = (operators_elementwise, operators_fused, operators_layout, operators_matrix)
"""The modules."""
