"""Lowering of `canonical.attention`, preset ``released``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import relax

from ... import integer
from ...dialect.calls import operands_of
from ...dialect.distances import UNBOUNDED
from ...errors import LoweringError
from ...spec.presets import Preset
from ...spec.released import ReleasedExponential
from ...spec.softmax import CONTEXT_BITS, CONTEXT_LIMIT
from ..context import LoweringContext
from ..forms import Form
from ..rule import FACTOR, FACTOR_BY_CHANNEL, MATMUL, LoweringRule, Need, activation
from ..rules.attention import check_operand, context_scale
from ..value import IntegerValue
from .value import ReleasedValue

EXPONENTIAL = "{}.exponential"
"""Name of the stream entry that holds the scale of an attention's 16-bit exponentials."""


class LowerReleasedAttention(LoweringRule, preset="released"):
    """Masked attention with exponentials of a calibrated range and floored probabilities.

    Expects q, k and v as int8 with one scale each, and in the table's ``stream`` section the scale
    of the exponentials under the operator's name and ``.exponential``: in units of the integers
    that the released i-exp yields, not of its real value. The context leaves as int32 at the scale
    S_v / 256 and is requantised by whoever reads it::

        c = attention(q, k, v, mask)  →  c = integer.attention(q_s8, k_s8, v_s8, mask, 1)
                                         o = integer.requantise_even(c, m, e)
    """

    op = "canonical.attention"

    def need(self, preset: Preset) -> Need:
        """Reads 8-bit forms and yields one."""
        return Need(operands=(FACTOR, FACTOR, FACTOR_BY_CHANNEL), result=(MATMUL,))

    def lower(
        self,
        call: relax.Call,
        operands: Sequence[IntegerValue | relax.Var],
        context: LoweringContext,
    ) -> IntegerValue:
        name = str(call.attrs["name"])
        window = int(call.attrs["before"]), int(call.attrs["after"])
        by_distance = {"bias", "key_positions", "query_positions"}
        capped = float(call.attrs["cap"]) > 0
        if capped or min(window) < UNBOUNDED or by_distance & {*operands_of(call)}:
            raise LoweringError(
                "attention with a window, a bias by distance or capped scores",
                where=name,
                why="the released code, whose arithmetic this preset repeats, has none of them",
                todo="quantise the model with the preset 'accurate' or 'paper'",
            )
        q, k, v = (activation(operand).matmul() for operand in operands[:3])
        for label, form in (("queries", q), ("keys", k), ("values", v)):
            check_operand(label, form, name, per_tensor=True)
        score_scale = float(q.scale[0] * k.scale[0]) * float(call.attrs["scale"])
        result_scale = context.table_entry("stream", EXPONENTIAL.format(name)).scale
        exponential = context.guard(
            name, lambda: ReleasedExponential.from_scales(score_scale, result_scale)
        )
        out = context.emit(
            integer.attention(
                q.var,
                k.var,
                v.var,
                operands[3] if len(operands) > 3 else None,
                context.parameter("released.one", np.array([1], np.int32)),
                name=name,
                num_heads=int(call.attrs["num_heads"]),
                softmax=context.preset.softmax,
                exponential=exponential,
                shift=0,
                low=-CONTEXT_LIMIT,
                high=CONTEXT_LIMIT,
                dtype="int32",
            )
        )
        scale = context_scale(call, v) / 2.0**CONTEXT_BITS
        return ReleasedValue(context, name, Form(out, name, scale, 0, CONTEXT_LIMIT))
