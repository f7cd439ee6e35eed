"""Lowering of `canonical.prepend_tokens`."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax

from .. import integer
from ..spec.presets import Preset
from .context import LoweringContext
from .forms import Form, IntegerValue
from .rows import quantised_rows
from .rule import STREAM, TERM, LoweringRule, Need, activation


class LowerPrependTokens(LoweringRule):
    """Learned tokens before every sequence: class and distillation tokens.

    The value is requantised to the result's own stream scale, as the terms of a sum are; the rows
    are rounded to that scale at compile time. Emits ``integer.prepend_tokens``, int32::

        y = prepend_tokens(x, t)  →  r = integer.requantise(x, m)
                                     y = integer.prepend_tokens(r, t_s32)            # S_y
    """

    op = "canonical.prepend_tokens"

    def need(self, preset: Preset) -> Need:
        """Reads the value at its own stream scale."""
        return Need(operands=(TERM,), result=(STREAM,), plain=True)

    def lower(
        self,
        call: relax.Call,
        operands: Sequence[IntegerValue | relax.Var],
        context: LoweringContext,
    ) -> IntegerValue:
        """See the class."""
        name = str(call.attrs["name"])
        quant = context.table_entry("stream", name)
        x = activation(operands[0]).term(quant, name)
        rows, largest = quantised_rows(context, call.args[1], quant, name)
        out = context.emit(integer.prepend_tokens(x.var, rows, name=name))
        magnitude = max(x.magnitude, largest)
        return IntegerValue(context, name, Form(out, name, quant.channel_scale, 0, magnitude))
