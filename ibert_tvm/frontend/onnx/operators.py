"""All translations, registered by importing the modules that hold them."""

from __future__ import annotations

from . import (
    operators_convolution,
    operators_elementwise,
    operators_fused,
    operators_layout,
    operators_matrix,
    operators_rotary,
    translator,
)

MODULES = (
    operators_convolution,
    operators_elementwise,
    operators_fused,
    operators_layout,
    operators_matrix,
    operators_rotary,
)
"""The modules."""
OPERATORS = translator.OPERATORS
"""What they registered, by domain and operator."""
