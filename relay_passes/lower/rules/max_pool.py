"""Lowering of `canonical.max_pool`."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax

from ... import integer
from ...spec.presets import Preset
from ..context import LoweringContext
from ..forms import Form
from ..rule import NATIVE, LoweringRule, Need, activation
from ..value import IntegerValue


class LowerMaxPool(LoweringRule):
    """Maximum over the tokens that the mask keeps.

    Takes any form in which the largest integer of a channel is the largest number and 0 is 0, so
    that requantisation runs on one row instead of all tokens; the stream form otherwise. The scale
    stays::

        y = max_pool(x, mask)  →  y = integer.max_pool(x, mask)
    """

    op = "canonical.max_pool"

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
        source = activation(operands[0]).ordered()
        out = context.emit(integer.max_pool(source.var, *operands[1:], name=name))
        return IntegerValue(context, name, Form(out, name, source.scale, 0, source.magnitude))
