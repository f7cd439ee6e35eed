"""i-softmax in 16-bit arithmetic: preset ``accurate``.

Exponentials of 8 bits are multiplied with V as they are, and every row of the context is divided
once by the sum of its exponentials. For one row of scores ``acc = q k^T`` (int32):

1. ``score = score_of(acc, key_offset(keep))``: masked keys are 2^30 below the others;
2. ``row_max = maximum of the scores`` (`row_floor` where all keys are masked);
3. ``e = exponential_of(score, row_max)``, 8 bits; ``s = sum of e``;
4. ``acc2 = sum_j e_j v_j``; with ``b = sum_bits(s)`` and ``r = reciprocal(s, b)``, once per row,
   ``c = context_of(acc2, b, r)``: V's scale with `CONTEXT_BITS` fraction bits, 16 bits. V may have
   `VALUE_BITS` bits more than 8;
5. a short requantisation to the output.

A masked key has e = 0; a row whose keys are all masked has s = 0 and a context of 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..errors import RangeError
from .exponential import LOG2_E
from .polynomial import check_scale
from .values import (
    Truth,
    Value,
    bind,
    cut,
    greater_equal,
    known,
    maximum,
    minimum,
    normalised_reciprocal,
    q15_multiply,
    select,
    short,
    spelled_as,
)

QUADRATIC = (1.0, 0.67483233, 0.17637571)
"""``2^-p`` on [0, 1) with value 1 at 0, minimax: maximal error 1.544e-3."""

MASKED = -(2**30)
"""Added to the score of a masked key."""
PAIR_MASKED = -(2**29)
"""Added to the score of a key that this query may not see: that and `MASKED` fit 32 bits
together."""
LARGEST_SCORE = 2**24
"""Bound of a real score."""
ROW_FLOOR = -(2**28)
"""Below every real score, and far above every masked one."""

CONTEXT_BITS = 7
"""Fraction bits of the context, in units of V's 8 bits."""
VALUE_BITS = 3
"""Bits that wide V has below its 8: those of its low part (`parts`)."""
VALUE_LIMIT = 127 << VALUE_BITS
"""Bound of wide V, whose high part is then no -128."""

MOST_WIDE_KEYS = (2**31 - 1) // (255 * VALUE_LIMIT)
"""Keys whose wide V, each with the weight 255, 32 bits hold: 8288."""

_FRACTION_BITS = 10
_ONE = 255 << 7
_EXPONENTS = 10  # 2^-9 of 255 rounds to 0
_ENOUGH = 16  # exponents whose shifts 32 bits have
_MAX_DOWN_SHIFT = 12
_LEAST_SUM_BITS = 8
_LEAST_SUM = 255


@dataclass(frozen=True)
class ShortExponential:
    """Constants of ``255 exp(-S d)`` by powers of two.

    ``y = q15(d', multiplier)`` is the exponent of two with 10 fraction bits, d' the distance
    shifted and saturated to 15 bits; ``2^-p`` of the fraction p is a quadratic in Q15.

    Parameters
    ----------
    down_shift, up_shift
        Of the distance; one of them is 0.
    multiplier
        Q15, in [2^14, 2^15).
    c0, c1, c2
        ``L(p) = c0 - p (c1 - p c2)`` with 15 bits, p in Q15.
    """

    down_shift: int
    up_shift: int
    multiplier: int
    c0: int
    c1: int
    c2: int

    @property
    def maximum(self) -> int:
        """The result at distance 0."""
        return self.c0 >> 7

    @staticmethod
    def from_scale(scale: float) -> ShortExponential:
        """Constants for the scores of a softmax.

        Parameters
        ----------
        scale
            Scale of the scores (of the int32 accumulator of Q K^T, 1/sqrt(d) included): from
            8.3e-8 to 0.69.

        Raises
        ------
        RangeError
            If the scale is so coarse that a unit halves the exponential, or too fine for 16 bits
            after a shift by 12.
        """
        check_scale(scale, "an exponential")
        factor = math.ldexp(scale * LOG2_E, _FRACTION_BITS)
        mantissa, exponent = math.frexp(factor)
        down_shift, up_shift = max(-exponent, 0), max(exponent, 0)
        if up_shift > _FRACTION_BITS:
            raise RangeError(
                f"scale {scale:.3g} is too coarse for i-exp",
                why=f"one unit changes the exponential by a factor of 2^{scale * LOG2_E:.3g}",
                todo="use finer scales of Q and K",
            )
        if down_shift > _MAX_DOWN_SHIFT:
            raise RangeError(
                f"scale {scale:.3g} is too fine for i-exp",
                why=f"a shift by {down_shift} would leave 16 bits of a distance, and at most "
                f"{_MAX_DOWN_SHIFT} keep masked keys apart",
                todo="use coarser scales of Q and K",
            )
        multiplier = min(round(math.ldexp(mantissa, 15)), 2**15 - 1)
        c0, c1, c2 = (round(_ONE * c) for c in QUADRATIC)
        return ShortExponential(down_shift, up_shift, multiplier, c0, c1, c2)


def check_scores(low: int, high: int) -> None:
    """Refuse scores that come near those of masked keys.

    Parameters
    ----------
    low, high
        Bounds of the scores of keys that count.

    Raises
    ------
    RangeError
        If one might exceed `LARGEST_SCORE`.
    """
    if max(high, -low) > LARGEST_SCORE:
        raise RangeError(
            f"a score may be {max(high, -low)}",
            why=f"masked keys stay apart from scores up to {LARGEST_SCORE}",
            todo="use narrower clamps on Q and K, or smaller heads",
        )


def key_offset(keep: Truth) -> Value:
    """What is added to the scores of a key: 0 for a real token, `MASKED` for padding."""
    return select(keep, 0, MASKED)


def score_of(acc: Value, offset: Value) -> Value:
    """Score of a key: the accumulator, far below all others for a masked key.

    Whatever is added to a masked accumulator besides `MASKED` or `PAIR_MASKED`, up to 2^24, leaves
    its exponential 0.
    """
    return acc + offset


def row_floor(largest: Value) -> Value:
    """Maximum of a row, bounded below so that a row of masked keys has exponentials of 0."""
    return maximum(largest, ROW_FLOOR)


def exponential_of(score: Value, row_max: Value, constants: ShortExponential) -> Value:
    """``255 exp(S (score - row_max))``.

    Parameters
    ----------
    score
        `score_of` the key, int32.
    row_max
        `row_floor` of the largest score of the row.
    constants

    Returns
    -------
    Value
        In [0, 255], short.
    """
    k = constants
    f = _FRACTION_BITS
    distance = known(row_max - score, 0, 2**31 - 1)  # the maximum is not below a score
    limit = (2**15 - 1) >> k.up_shift
    kept = short(minimum(distance >> k.down_shift, limit)) << k.up_shift
    # Anything from _EXPONENTS - 1 powers of two down rounds to 0.
    y = bind(cut(q15_multiply(kept, k.multiplier), (_EXPONENTS << f) - 1, (_ENOUGH << f) - 1))
    p = bind((y & ((1 << f) - 1)) << (15 - f))
    # L is at least half of c0 (known of the polynomial, not of its interval) and at most c0.
    mantissa = known(k.c0 - q15_multiply(p, k.c1 - q15_multiply(p, k.c2)), 0, k.c0)
    return ((mantissa >> ((y >> f) + 6)) + 1) >> 1


def sum_bits(total: Value, largest: int) -> Value:
    """Bits of the sum of a row's exponentials, at least 8.

    A sum of comparisons with powers of two: no intrinsic, so the same on every target.

    Parameters
    ----------
    total
        Sum of the exponentials, 0 or at least 255.
    largest
        Upper bound of it.

    Returns
    -------
    Value
        In [8, bits of `largest`], int32.
    """
    top = max(largest.bit_length(), _LEAST_SUM_BITS)
    function = spelled_as("floor_log2", maximum(total, _LEAST_SUM))
    if function is not None:
        return known(function + 1, _LEAST_SUM_BITS, top)
    bits: Value = _LEAST_SUM_BITS
    for j in range(_LEAST_SUM_BITS, top):
        bits = select(greater_equal(total, 1 << j), 1, 0) + bits
    return known(bits, _LEAST_SUM_BITS, top)


def reciprocal(total: Value, bits: Value) -> Value:
    """``floor(2^(14 + b) / s)`` in Q15 of ``2^(b-1) / s``: one division per row.

    Parameters
    ----------
    total
        s, 0 or at least 255.
    bits
        `sum_bits` of it.

    Returns
    -------
    Value
        In [2^14, 2^15 - 1].
    """
    return normalised_reciprocal(maximum(total, _LEAST_SUM), bits + 14)  # 2^(b-1) <= s < 2^b


def check_values(low: int, high: int) -> None:
    """Refuse wide V whose context might not fit 16 bits.

    Parameters
    ----------
    low, high
        Bounds of V.

    Raises
    ------
    RangeError
        If one might exceed `VALUE_LIMIT`.
    """
    if max(high, -low) > VALUE_LIMIT:
        raise RangeError(
            f"a value of attention may be {max(high, -low)}",
            why=f"values of 16 bits are bounded by {VALUE_LIMIT}: their mean is then computed in "
            "16 bits",
            todo="requantise V to that range",
        )


def context_of(acc: Value, bits: Value, factor: Value, wide: bool = False) -> Value:
    """Context in units of V's 8 bits, with `CONTEXT_BITS` fraction bits.

    Parameters
    ----------
    acc
        ``sum_j e_j v_j``, int32.
    bits
        `sum_bits` of the row.
    factor
        `reciprocal` of the row.
    wide
        Whether V has `VALUE_BITS` bits more than 8, and so has acc.

    Returns
    -------
    Value
        In [-2^14 - 1, 2^14], short.
    """
    more = VALUE_BITS if wide else 0
    # |acc| <= 128 s < 2^(b + 7), of wide V 2^VALUE_BITS times as much.
    kept = short(known(acc >> (bits - (_LEAST_SUM_BITS - more)), -(2**15), 2**15 - 1))
    # |acc| r <= 128 2^(b + 14); rounding `kept` down adds at most one unit below 0.
    return known(q15_multiply(kept, factor), -(2**14) - 1, 2**14)
