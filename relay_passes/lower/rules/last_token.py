"""Lowering of `canonical.last_token`."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax

from ... import integer
from ...spec.presets import Preset
from ..context import LoweringContext
from ..forms import Form
from ..rule import NATIVE, LoweringRule, Need, activation
from ..value import IntegerValue


class LowerLastToken(LoweringRule):
    """The last token that the mask keeps.

    Takes any form without a zero point, since a sequence without tokens gives 0, and keeps its type
    and scale; requantisation then runs on one token instead of all::

        y = last_token(x, mask)  →  y = integer.last_token(x, mask)
    """

    op = "canonical.last_token"

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
        out = context.emit(integer.last_token(source.var, operands[1], name=name))
        return IntegerValue(context, name, Form(out, name, source.scale, 0, source.magnitude))
