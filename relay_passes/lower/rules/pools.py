"""Lowering of poolings, which give one row for each sequence."""

from __future__ import annotations

from ...canonical.operators.pools import (
    AttentionPool,
    LastToken,
    MaxPool,
    MeanPool,
    SelectToken,
    SqrtMeanPool,
    WeightedMeanPool,
)
from ...quantization_table import ActivationQuant
from ..forms import Form, stored
from ..rule import FACTOR_BY_CHANNEL, MATMUL, NATIVE, PLAIN, STREAM, Need, Node, activation, lowers
from ..value import IntegerValue
from .attention import check_operand, context_factors, exponential_of

# The mean of n integers is known to 1/n of a step; eight bits keep that for 256 tokens.
_MEAN_BITS = 8
# A sum of n integers over the root of n is known to 1/sqrt(n) of a step.
_ROOT_MEAN_BITS = 5
_LONGEST_ROOT_BITS = 8
_INT32_BITS = 31
_SCORE_HIGH = 2**15 - 1
_SMALLEST_SCORE = 2.0**-6  # scores below it are alike, and their scale would be too fine for i-exp


@lowers(MeanPool, WeightedMeanPool, need=PLAIN)
def mean(node: Node[MeanPool | WeightedMeanPool]) -> IntegerValue:
    """Mean over the tokens that the mask keeps.

    int32 with extra fraction bits (8, or as many as int32 leaves); the scale shrinks by as many::

        y = mean_pool(x, mask)  →  y = integer.mean_pool(x, mask)                # S_x / 2^8
    """
    source = node.x.scalar()
    bits = min(_MEAN_BITS, _INT32_BITS - 1 - source.magnitude.bit_length())
    out = node.emit(source.var, *node.operands[1:], fraction_bits=bits)
    return node.result(out, source.scale / 2.0**bits, source.magnitude << bits)


@lowers(SqrtMeanPool, need=PLAIN)
def sqrt_mean(node: Node[SqrtMeanPool]) -> IntegerValue:
    """Sum of the tokens that the mask keeps over the root of their number.

    int32 with extra fraction bits (5, or as many as int32 leaves for 65536 tokens)::

        y = sqrt_mean_pool(x, mask)  →  y = integer.sqrt_mean_pool(x, mask)      # S_x / 2^5
    """
    source = node.x.scalar()
    largest = source.magnitude << _LONGEST_ROOT_BITS
    bits = max(min(_ROOT_MEAN_BITS, _INT32_BITS - 1 - largest.bit_length()), 0)
    out = node.emit(source.var, *node.operands[1:], fraction_bits=bits)
    return node.result(out, source.scale / 2.0**bits, largest << bits)


@lowers(MaxPool, LastToken, need=Need(operands=(NATIVE,), plain=None))
def kept_entries(node: Node[MaxPool | LastToken]) -> IntegerValue:
    """Maximum over the tokens that the mask keeps, or the last of them.

    Takes any form in which integers of a channel grow with the numbers and 0 is 0, since a sequence
    without tokens gives 0; requantisation then runs on one row instead of all tokens. The scale
    stays::

        y = max_pool(x, mask)  →  y = integer.max_pool(x, mask)
    """
    source = node.x.ordered()
    out = node.emit(source.var, *node.operands[1:])
    return node.result(out, source.scale, source.magnitude)


@lowers(SelectToken, need=Need(operands=(NATIVE,), plain=None))
def select_token(node: Node[SelectToken]) -> IntegerValue:
    """One token of a sequence, in whatever form it comes; requantisation then runs on it alone."""
    source = node.x.native()
    # The published GELU, which no kernel selects, and products.
    if str(source.var.ty.dtype) == "int64" or not source.readable:
        source = node.x.stream()
    return node.result(node.emit(source.var), source.scale, source.magnitude, source.zero_point)


def _short_scores(largest: float) -> ActivationQuant:
    """15 bits; twice the largest score fits them, as a score is clamped at their ends."""
    scale = 2 * max(largest, _SMALLEST_SCORE) / _SCORE_HIGH
    return ActivationQuant(scale, -_SCORE_HIGH, _SCORE_HIGH)


@lowers(
    AttentionPool,
    need=Need(operands=(STREAM, FACTOR_BY_CHANNEL), result=(MATMUL,), stream_for=_short_scores),
)
def attention_pool(node: Node[AttentionPool]) -> IntegerValue:
    """Attention of one learned query, whose scores are a linear function of the tokens.

    Expects the scores in 15 bits, with room for twice what calibration saw, whose scale is that of
    the exponential, and v as int8, possibly with a scale per channel. The context leaves in its
    matmul form at once, as in ``integer.attention``::

        c = attention_pool(s, v, mask)  →  c = integer.attention_pool(s, v_s8, m_s32, mask)
    """
    v = activation(node.operands[1]).matmul()
    scores = node.x.stream()
    if scores.magnitude > _SCORE_HIGH:
        largest = float(scores.scale[0]) * scores.magnitude
        scores = node.x.term(_short_scores(largest), node.name)
    check_operand("values", v, node.name, per_tensor=False)
    quant = node.entry("matmul")
    factors = context_factors(v.scale / quant.channel_scale, node.preset, quant)
    out = node.emit(
        scores.var,
        v.var,
        node.parameter("multiplier", factors.multipliers),
        *node.operands[2:],
        exponential=exponential_of(node, float(scores.scale[0])),
        shift=factors.shift,
        **stored(quant),
    )
    return node.value(Form.of(out, node.name, quant))
