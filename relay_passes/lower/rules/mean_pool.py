"""Lowering of `canonical.mean_pool`."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax

from ... import integer
from ...spec.presets import Preset
from ..context import LoweringContext
from ..forms import Form
from ..rule import SCALAR, LoweringRule, Need, activation
from ..value import IntegerValue

# The mean of n integers is known to 1/n of a step; eight bits keep that for 256 tokens.
_FRACTION_BITS = 8
_INT32_BITS = 31


class LowerMeanPool(LoweringRule):
    """Mean over the tokens that the mask keeps.

    Expects x with one scale and no zero point. Emits ``integer.mean_pool``, int32 with extra
    fraction bits (8, or as many as int32 leaves); the scale shrinks by as many::

        y = mean_pool(x, mask)  →  y = integer.mean_pool(x, mask)                # S_x / 2^8
    """

    op = "canonical.mean_pool"

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
        bits = min(_FRACTION_BITS, _INT32_BITS - 1 - source.magnitude.bit_length())
        out = context.emit(
            integer.mean_pool(source.var, *operands[1:], name=name, fraction_bits=bits)
        )
        form = Form(out, name, source.scale / 2.0**bits, 0, source.magnitude << bits)
        return IntegerValue(context, name, form)
