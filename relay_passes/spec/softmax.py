"""i-softmax as published, in the stages that surround the two matrix products of attention.

Probabilities of 8 bits (floor) are multiplied with V, which brings the context to V's scale with
`CONTEXT_BITS` fraction bits; requantisation to the output follows. The form of preset ``accurate``
is `ibert_tvm.relay_passes.spec.short_softmax`.

Order of the stages, for one row of scores ``acc = q k^T`` (int32):

1. ``row_max = max over unmasked keys of acc`` (`masked_score` of every key);
2. ``e = exp_of(acc, row_max, keep, exponential)`` for every key, ``s = sum of e``;
3. ``f = factor_of_sum(s)``, ``p = probability_of(e, f)``, ``acc2 = sum_j p_j v_j``,
   ``t = context_of_probabilities(acc2)``;
4. ``out = output_of(t, multiplier, shift, zero_point, low, high)``.

A masked key has e = 0; a row whose keys are all masked has s = 0 and the output is the zero point.
"""

from __future__ import annotations

from ..errors import RangeError
from .exponential import Exponential, exponential
from .fixed_point import requantise_clamped
from .values import Truth, Value, clamp, floor_divide, maximum, minimum, select

MASKED_SCORE = -(2**30)
"""Score of a masked key: below every real one (|acc| <= D 2^14 < 2^30 for heads of D < 2^16)."""

CONTEXT_BITS = 8
"""Fraction bits of the context before requantisation."""
CONTEXT_LIMIT = 128 << CONTEXT_BITS
"""A mean of int8 values cannot exceed this."""

_FACTOR_BITS = 32
_PROBABILITY_BITS = 8


def check_scores(low: int, high: int) -> None:
    """Refuse scores that are not above those of masked keys.

    Parameters
    ----------
    low, high
        Bounds of the scores of keys that count.

    Raises
    ------
    RangeError
        If one might be as low as `MASKED_SCORE`.
    """
    if low <= MASKED_SCORE:
        raise RangeError(
            f"a score may be {low}",
            why=f"masked keys count as {MASKED_SCORE}, which is to be below real scores",
            todo="use narrower clamps on Q and K, or smaller heads",
        )


def masked_score(acc: Value, keep: Truth) -> Value:
    """Score of a key in the search for the row's maximum.

    Parameters
    ----------
    acc
        Score, int32.
    keep : condition
        True for a real token, False for padding (``values.not_equal(mask, 0)``).

    Returns
    -------
    Value
        int32.
    """
    return select(keep, acc, MASKED_SCORE)


def exp_of(acc: Value, row_max: Value, keep: Truth, constants: Exponential) -> Value:
    """Exponential of a score, relative to the row's maximum; 0 for a masked key.

    Parameters
    ----------
    acc, row_max
        int32; the maximum over the unmasked keys of the row (`MASKED_SCORE` if there is none).
    keep : condition
        True for a real token.
    constants : PolynomialExponential or ReleasedExponential
        Form and constants.

    Returns
    -------
    Value
        In [0, constants.maximum]: up to 16 bits.
    """
    return select(keep, exponential(row_max - acc, constants), 0)


def factor_of_sum(total: Value) -> Value:
    """``floor(2^32 / max(s, 1))`` as published: one division per row.

    Parameters
    ----------
    total
        Sum of the exponentials of a row.

    Returns
    -------
    Value
        int64, up to 2^32.
    """
    return floor_divide(1 << _FACTOR_BITS, maximum(total, 1))


def probability_of(e: Value, factor: Value) -> Value:
    """Probability of scale 1/256, floor as published, at most 255.

    Parameters
    ----------
    e
        Exponential of the key, 16 bits at most.
    factor
        `factor_of_sum` of the row.

    Returns
    -------
    Value
        In [0, 255]; the product is int64.
    """
    return minimum((e * factor) >> (_FACTOR_BITS - _PROBABILITY_BITS), (1 << _PROBABILITY_BITS) - 1)


def context_of_probabilities(acc: Value) -> Value:
    """Context in V's scale with 8 fraction bits.

    Parameters
    ----------
    acc
        ``sum_j p_j v_j``, int32; floored probabilities sum to 256 at most, so the clamp only
        states a bound that holds.

    Returns
    -------
    Value
        int32, 16 bits and the sign.
    """
    return clamp(acc, -CONTEXT_LIMIT, CONTEXT_LIMIT)


def output_of(
    context: Value, multiplier: Value, shift: int, zero_point: int, low: int, high: int
) -> Value:
    """Requantise the context to the output of the attention.

    Parameters
    ----------
    context
        `context_of_probabilities`.
    multiplier, shift
        Dyadic factor ``S_v / 256 / S_out``; with multipliers of 15 bits at most it stays in int32.
    zero_point, low, high
        Of the result.

    Returns
    -------
    Value
        In [low, high].
    """
    return requantise_clamped(context, multiplier, shift, zero_point, low, high)
