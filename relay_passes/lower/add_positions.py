"""Lowering of `canonical.add_positions`."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax

from .. import integer
from ..spec.presets import Preset
from .context import LoweringContext
from .forms import Form, IntegerValue
from .rows import quantised_rows
from .rule import STREAM, TERM, LoweringRule, Need, activation


class LowerAddPositions(LoweringRule):
    """One row of a table added to every token of a sequence of static length.

    The value is requantised to the sum's own stream scale; the table is rounded to that scale at
    compile time, which is finer than an int8 table could be. Emits ``integer.add_positions``,
    int32, one bit more than its terms::

        y = add_positions(x, t)  →  r = integer.requantise(x, m)
                                    y = integer.add_positions(r, t_s32)              # S_y
    """

    op = "canonical.add_positions"

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
        out = context.emit(integer.add_positions(x.var, rows, name=name))
        magnitude = x.magnitude + largest
        return IntegerValue(context, name, Form(out, name, quant.channel_scale, 0, magnitude))
