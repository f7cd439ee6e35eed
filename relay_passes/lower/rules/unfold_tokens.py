"""Lowering of `canonical.unfold_tokens`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tvm import relax

from ... import integer
from ...spec.presets import Preset
from ..context import LoweringContext
from ..rule import SCALAR, LoweringRule, Need, activation
from ..value import IntegerValue


class LowerUnfoldTokens(LoweringRule):
    """The channels of neighbouring tokens, for a convolution along the sequence.

    Reads a form without a zero point, since 0 comes from outside, and keeps its type and scale; the
    matrix product behind it asks for 8 bits, with scales by channel of each neighbour::

        y = unfold_tokens(x)  →  y = integer.unfold_tokens(x)
    """

    op = "canonical.unfold_tokens"

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
        sizes = {key: int(call.attrs[key]) for key in ("width", "stride", "before", "after")}
        rows = context.emit(integer.unfold_tokens(source.var, name=name, **sizes))
        return IntegerValue(context, name, replace(source, var=rows, value=name))
