"""Lowering of what the caller gives in integers, cut into rows."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
from tvm import relax

from ..errors import LoweringError
from ..quantization_table import ActivationQuant
from ..spec.presets import Preset
from .context import LoweringContext
from .forms import Form, storage
from .rule import MATMUL, LoweringRule, Need
from .value import IntegerValue


class LowerGiven(LoweringRule):
    """Base of the rules of rows that are cut out of 8-bit pixels.

    Pixels are real on the caller's side and 8-bit integers on the program's: the input takes the
    type, scale and zero point of the rows' matmul entry, by which the caller quantises. Cutting
    moves integers only, so the result is in its matmul form at once.
    """

    def need(self, preset: Preset) -> Need:
        """The 8-bit form, in which the pixels come."""
        return Need(result=(MATMUL,), plain=False, given=True)

    @abstractmethod
    def cut(self, call: relax.Call, pixels: relax.Var, quant: ActivationQuant) -> relax.Call:
        """Return the operator that cuts them, under the name of `call`."""

    def lower(
        self,
        call: relax.Call,
        operands: Sequence[IntegerValue | relax.Var],
        context: LoweringContext,
    ) -> IntegerValue:
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
        out = context.emit(self.cut(call, pixels, quant))
        magnitude = max(-quant.low, quant.high)
        form = Form(out, name, np.array([quant.scale]), quant.zero_point, magnitude)
        return IntegerValue(context, name, form)
