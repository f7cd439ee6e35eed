"""All translations, registered by importing the modules that hold them."""

from __future__ import annotations

from . import operators_elementwise, operators_fused, operators_layout, operators_matrix
from .translator import OPERATORS

__all__ = ["MODULES", "OPERATORS"]

MODULES = (operators_elementwise, operators_fused, operators_layout, operators_matrix)
"""The modules."""
