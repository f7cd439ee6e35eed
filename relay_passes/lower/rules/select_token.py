"""Lowering of `canonical.select_token`."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax

from ... import integer
from ...spec.presets import Preset
from ..context import LoweringContext
from ..forms import Form
from ..rule import NATIVE, LoweringRule, Need, activation
from ..value import IntegerValue


class LowerSelectToken(LoweringRule):
    """One token of a sequence.

    Takes the native form of its operand, whatever that is, and keeps its type, scale and zero
    point; requantisation then runs on one token instead of all::

        y = select_token(x)  →  y = integer.select_token(x)
    """

    op = "canonical.select_token"

    def need(self, preset: Preset) -> Need:
        """Any form."""
        return Need(operands=(NATIVE,), plain=None)

    def lower(
        self,
        call: relax.Call,
        operands: Sequence[IntegerValue | relax.Var],
        context: LoweringContext,
    ) -> IntegerValue:
        name = str(call.attrs["name"])
        operand = activation(operands[0])
        source = operand.native()
        # The published GELU, which no kernel selects, and products.
        if str(source.var.ty.dtype) == "int64" or not source.readable:
            source = operand.stream()
        out = context.emit(
            integer.select_token(source.var, name=name, index=int(call.attrs["index"]))
        )
        form = Form(out, name, source.scale, source.zero_point, source.magnitude)
        return IntegerValue(context, name, form)
