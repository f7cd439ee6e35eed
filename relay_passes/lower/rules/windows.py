"""Lowering of `canonical.windows`."""

from __future__ import annotations

from tvm import relax

from ... import integer
from ...quantization_table import ActivationQuant
from ..given import LowerGiven

_SIZES = ("height", "width", "stride_down", "stride_across", "top", "bottom", "left", "right")


class LowerWindows(LowerGiven):
    """Windows of 8-bit pixels.

    Emits ``integer.windows``, with the integer of the real 0 around them::

    y = windows(pixel_values)  →  y = integer.windows(pixel_values_s8)           # S_pixels
    """

    op = "canonical.windows"

    def cut(self, call: relax.Call, pixels: relax.Var, quant: ActivationQuant) -> relax.Call:
        sizes = {key: int(call.attrs[key]) for key in _SIZES}
        return integer.windows(
            pixels, name=str(call.attrs["name"]), zero_point=quant.zero_point, **sizes
        )
