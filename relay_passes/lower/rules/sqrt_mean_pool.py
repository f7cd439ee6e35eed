"""Lowering of `canonical.sqrt_mean_pool`."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax

from ... import integer
from ...spec.presets import Preset
from ..context import LoweringContext
from ..forms import Form
from ..rule import SCALAR, LoweringRule, Need, activation
from ..value import IntegerValue

# A sum of n integers over the root of n is known to 1/sqrt(n) of a step.
_FRACTION_BITS = 5
_LONGEST_ROOT_BITS = 8
_INT32_BITS = 31


class LowerSqrtMeanPool(LoweringRule):
    """Sum of the tokens that the mask keeps over the root of their number.

    Expects x with one scale and no zero point. Emits ``integer.sqrt_mean_pool``, int32 with extra
    fraction bits (5, or as many as int32 leaves for 65536 tokens); the scale shrinks by as many::

        y = sqrt_mean_pool(x, mask)  →  y = integer.sqrt_mean_pool(x, mask)  # S_x / 2^5
    """

    op = "canonical.sqrt_mean_pool"

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
        largest = source.magnitude << _LONGEST_ROOT_BITS
        bits = max(min(_FRACTION_BITS, _INT32_BITS - 1 - largest.bit_length()), 0)
        out = context.emit(
            integer.sqrt_mean_pool(source.var, *operands[1:], name=name, fraction_bits=bits)
        )
        form = Form(out, name, source.scale / 2.0**bits, 0, largest << bits)
        return IntegerValue(context, name, form)
