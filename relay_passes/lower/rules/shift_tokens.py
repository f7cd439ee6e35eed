"""Lowering of `canonical.shift_tokens`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tvm import relax

from ... import integer
from ...spec.presets import Preset
from ..context import LoweringContext
from ..rule import SCALAR, LoweringRule, Need, activation
from ..value import IntegerValue


class LowerShiftTokens(LoweringRule):
    """The neighbours of the tokens.

    Reads a form without a zero point, since 0 comes from outside, and keeps its type and scale::

        y = shift_tokens(x)  →  y = integer.shift_tokens(x)
    """

    op = "canonical.shift_tokens"

    def need(self, preset: Preset) -> Need:
        """One scale, whose 0 is 0."""
        return Need(operands=(SCALAR,), plain=True)

    def lower(
        self,
        call: relax.Call,
        operands: Sequence[IntegerValue | relax.Var],
        context: LoweringContext,
    ) -> IntegerValue:
        name = str(call.attrs["name"])
        source = activation(operands[0]).scalar()
        distance = int(call.attrs["distance"])
        moved = integer.shift_tokens(source.var, name=name, distance=distance)
        return IntegerValue(context, name, replace(source, var=context.emit(moved), value=name))
