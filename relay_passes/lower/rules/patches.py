"""Lowering of `canonical.patches`."""

from __future__ import annotations

from tvm import relax

from ... import integer
from ...quantization_table import ActivationQuant
from ..given import LowerGiven


class LowerPatches(LowerGiven):
    """Patches of 8-bit pixels.

    Emits ``integer.patches``::

    y = patches(pixel_values)  →  y = integer.patches(pixel_values_s8)           # S_pixels
    """

    op = "canonical.patches"

    def cut(self, call: relax.Call, pixels: relax.Var, quant: ActivationQuant) -> relax.Call:
        return integer.patches(
            pixels,
            name=str(call.attrs["name"]),
            patch_height=int(call.attrs["patch_height"]),
            patch_width=int(call.attrs["patch_width"]),
        )
