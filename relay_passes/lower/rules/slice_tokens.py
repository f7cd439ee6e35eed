"""Lowering of `canonical.slice_tokens`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tvm import relax

from ... import integer
from ...spec.presets import Preset
from ..context import LoweringContext
from ..rule import SCALAR, LoweringRule, Need, activation
from ..value import IntegerValue


class LowerSliceTokens(LoweringRule):
    """Some tokens of a sequence of static length.

    Reads one scale and keeps it, and the type::

        y = slice_tokens(x)  →  y = integer.slice_tokens(x)
    """

    op = "canonical.slice_tokens"

    def need(self, preset: Preset) -> Need:
        """One scale."""
        return Need(operands=(SCALAR,), plain=True)

    def lower(
        self,
        call: relax.Call,
        operands: Sequence[IntegerValue | relax.Var],
        context: LoweringContext,
    ) -> IntegerValue:
        name = str(call.attrs["name"])
        source = activation(operands[0]).scalar()
        first, count = int(call.attrs["first"]), int(call.attrs["count"])
        kept = integer.slice_tokens(source.var, name=name, first=first, count=count)
        return IntegerValue(context, name, replace(source, var=context.emit(kept), value=name))
