"""Lowering of `canonical.attention_pool`."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax

from ... import integer
from ...quantization_table import ActivationQuant
from ...spec.presets import Preset
from ..context import LoweringContext
from ..forms import Form, storage
from ..rule import FACTOR_BY_CHANNEL, MATMUL, STREAM, LoweringRule, Need, activation
from ..value import IntegerValue
from .attention import check_operand, context_factors

_HIGH = 2**15 - 1
_SMALLEST = 2.0**-6  # scores below it are alike, and their scale would be too fine for i-exp


def _short_scores(largest: float) -> ActivationQuant:
    """15 bits; twice the largest score fits them, as a score is clamped at their ends."""
    return ActivationQuant(2 * max(largest, _SMALLEST) / _HIGH, -_HIGH, _HIGH)


class LowerAttentionPool(LoweringRule):
    """Attention of one learned query, whose scores are a linear function of the tokens.

    Expects the scores in 15 bits, with room for twice what calibration saw, whose scale is that of
    the exponential, and v as int8, possibly with a scale per channel. The context leaves in its
    matmul form at once, as in ``integer.attention``::

        c = attention_pool(s, v, mask)  →  c = integer.attention_pool(s, v_s8, m_s32, mask)
    """

    op = "canonical.attention_pool"

    def need(self, preset: Preset) -> Need:
        """Scores of 15 bits, 8-bit values, and an 8-bit result."""
        operands = (STREAM, FACTOR_BY_CHANNEL)
        return Need(operands=operands, result=(MATMUL,), stream_for=_short_scores)

    def lower(
        self,
        call: relax.Call,
        operands: Sequence[IntegerValue | relax.Var],
        context: LoweringContext,
    ) -> IntegerValue:
        name = str(call.attrs["name"])
        given, v = activation(operands[0]), activation(operands[1]).matmul()
        scores = given.stream()
        if scores.magnitude > _HIGH:
            largest = float(scores.scale[0]) * scores.magnitude
            scores = given.term(_short_scores(largest), name)
        check_operand("values", v, name, per_tensor=False)
        quant = context.table_entry("matmul", name)
        exponential = context.guard(
            name, lambda: context.preset.exponential_for(float(scores.scale[0]))
        )
        ratio = v.scale / quant.channel_scale
        factors = context.guard(name, lambda: context_factors(ratio, context.preset, quant))
        out = context.emit(
            integer.attention_pool(
                scores.var,
                v.var,
                context.parameter(f"{name}.multiplier", factors.multipliers),
                *operands[2:],
                name=name,
                exponential=exponential,
                shift=factors.shift,
                low=quant.low,
                high=quant.high,
                dtype=storage(quant),
                zero_point=quant.zero_point,
            )
        )
        magnitude = max(-quant.low, quant.high)
        return IntegerValue(
            context, name, Form(out, name, quant.channel_scale, quant.zero_point, magnitude)
        )
