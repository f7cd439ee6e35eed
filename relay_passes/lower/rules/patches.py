"""Lowering of `canonical.patches`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import relax

from ... import integer
from ...errors import LoweringError
from ...spec.presets import Preset
from ..context import LoweringContext
from ..forms import Form, storage
from ..rule import MATMUL, LoweringRule, Need
from ..value import IntegerValue


class LowerPatches(LoweringRule):
    """Patches of 8-bit pixels.

    Pixels are real on the caller's side and 8-bit integers on the program's: the input takes the
    type, scale and zero point of the patches' matmul entry, by which the caller quantises. Cutting
    moves integers only, so the result is in its matmul form at once. Emits ``integer.patches``::

        y = patches(pixel_values)  →  y = integer.patches(pixel_values_s8)           # S_pixels
    """

    op = "canonical.patches"

    def need(self, preset: Preset) -> Need:
        """The 8-bit form, in which the pixels come."""
        return Need(result=(MATMUL,), plain=False, given=True)

    def lower(
        self,
        call: relax.Call,
        operands: Sequence[IntegerValue | relax.Var],
        context: LoweringContext,
    ) -> IntegerValue:
        """See the class."""
        name = str(call.attrs["name"])
        pixels: relax.Var = operands[0]
        quant = context.table_entry("matmul", name)
        if quant.channel_divisor is not None:
            raise LoweringError(
                "the pixels have a scale per channel",
                where=name,
                why="the caller quantises whole images with one scale",
                todo="quantise the pixels with one scale",
            )
        if str(pixels.ty.dtype) != storage(quant):
            raise LoweringError(
                f"the pixels are {pixels.ty.dtype} and their form is {storage(quant)}",
                where=name,
                why="two operators cut patches out of one input, and ask for different forms",
                todo="give both the same entry in the quantisation table",
            )
        out = context.emit(
            integer.patches(
                pixels,
                name=name,
                patch_height=int(call.attrs["patch_height"]),
                patch_width=int(call.attrs["patch_width"]),
            )
        )
        magnitude = max(-quant.low, quant.high)
        form = Form(out, name, np.array([quant.scale]), quant.zero_point, magnitude)
        return IntegerValue(context, name, form)
