"""Lowering of `canonical.mask_tokens`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tvm import relax

from ... import integer
from ...spec.presets import Preset
from ..context import LoweringContext
from ..rule import SCALAR, LoweringRule, Need, activation
from ..value import IntegerValue


class LowerMaskTokens(LoweringRule):
    """0 at padding, where something sees it.

    Reads a form without a zero point and keeps its type and scale::

        y = mask_tokens(x, mask)  →  y = integer.mask_tokens(x, mask)
    """

    op = "canonical.mask_tokens"

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
        out = context.emit(integer.mask_tokens(source.var, operands[1], name=name))
        return IntegerValue(context, name, replace(source, var=out, value=name))
