"""Lowering of `canonical.add`."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax

from ... import integer
from ...spec.presets import Preset
from ...spec.short_layer_norm import INPUT_LIMIT
from ..context import LoweringContext
from ..forms import Form
from ..rule import STREAM, TERM, LoweringRule, Need, activation
from ..value import IntegerValue


class LowerAdd(LoweringRule):
    """Sum of two values with different scales.

    Both terms are requantised to the sum's own stream scale; then the integers are added. Where the
    preset computes in 16 bits and the sum's entry has 15, emits ``integer.add_short``, clamped to
    that entry; otherwise ``integer.add``, int32, one bit more than its terms. Wide terms are
    clamped to the range of the sum's entry; short ones may use all of 16 bits, and embeddings come
    at the right scale at once::

        y = add(a, b)  →  r = integer.requantise(a, m);  s = integer.requantise(b, n)
                          y = integer.add(r, s)                                   # S_y
    """

    op = "canonical.add"

    def need(self, preset: Preset) -> Need:
        """Reads both terms at its own stream scale."""
        return Need(operands=(TERM, TERM), result=(STREAM,), plain=True, short=preset.short)

    def lower(
        self,
        call: relax.Call,
        operands: Sequence[IntegerValue | relax.Var],
        context: LoweringContext,
    ) -> IntegerValue:
        name = str(call.attrs["name"])
        quant = context.table_entry("stream", name)
        a, b = (activation(operand).term(quant, name) for operand in operands)
        if context.preset.short and max(-quant.low, quant.high) <= INPUT_LIMIT:
            bounds = {"low": quant.low, "high": quant.high}
            out = context.emit(integer.add_short(a.var, b.var, name=name, **bounds))
            magnitude = max(-quant.low, quant.high)
            return IntegerValue(context, name, Form(out, name, quant.channel_scale, 0, magnitude))
        out = context.emit(integer.add(a.var, b.var, name=name))
        form = Form(out, name, quant.channel_scale, 0, a.magnitude + b.magnitude)
        return IntegerValue(context, name, form)
