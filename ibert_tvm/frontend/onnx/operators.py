"""All translations, registered by importing the modules that hold them."""

from __future__ import annotations

from ibert_tvm.frontend.onnx import (
    operators_elementwise,
    operators_fused,
    operators_layout,
    operators_matrix,
)
from ibert_tvm.frontend.onnx.translator import OPERATORS

__all__ = ["OPERATORS", "supported"]

MODULES = (operators_elementwise, operators_fused, operators_layout, operators_matrix)
"""The modules."""


def supported() -> list[str]:
    """Return the names of all operators that have a translation, those of other domains with it."""
    return sorted(f"{domain}.{name}" if domain else name for domain, name in OPERATORS)
