"""Requantisation as released: 31-bit mantissa, exponent per channel, rounding half to even.

The released code computes ``round(q m / 2^e)`` in fp64, where ``m / 2^e`` is the ratio of two
scales with m of 31 bits. The product of an int64 value and such a mantissa leaves 64 bits, so it
is formed in two parts; what the lower part contributes besides its carry is one sticky bit, which
decides ties and nothing else.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ...errors import RangeError
from ..values import Value, bind, clamp, floor_divide, known, minimum

MANTISSA_BITS = 31
_TOP = 62
# Bits of the high part of a product: with 31 of the mantissa and the sticky bit they stay below 62.
_PART_BITS = 29


def split_for(magnitude: int) -> int:
    """Bits that a value must be split by before it is multiplied with a 31-bit mantissa.

    Parameters
    ----------
    magnitude
        Largest absolute value.

    Returns
    -------
    int
        0 where the product fits 62 bits as it is.
    """
    bits = magnitude.bit_length()
    return 0 if bits <= MANTISSA_BITS else bits - _PART_BITS


def mantissa_and_exponent(real: float) -> tuple[int, int]:
    """``m, e`` with ``real ~ m / 2^e`` and m of 31 bits, rounded half away from zero.

    Parameters
    ----------
    real
        Finite and not zero.

    Returns
    -------
    multiplier, exponent : int
        ``2^30 <= |m| < 2^31``. A mantissa that rounds up to 2^31, which int32 cannot hold, becomes
        2^30 with the exponent one lower: the same number.
    """
    fraction, exponent = math.frexp(abs(real))
    multiplier = math.floor(math.ldexp(fraction, MANTISSA_BITS) + 0.5)
    if multiplier == 1 << MANTISSA_BITS:
        multiplier, exponent = multiplier >> 1, exponent + 1
    return (multiplier if real > 0 else -multiplier), MANTISSA_BITS - exponent


@dataclass(frozen=True, eq=False)
class ExactFactors:
    """Factors between two scales, one or one per channel: operands of `requantise_even`.

    Parameters
    ----------
    multipliers
        int32 [C].
    shifts
        int32 [C], 1..62: the right shift after the product, less what `split` has taken.
    split
        Bits by which the value is split before the multiplication, 0 for 31-bit values.
    """

    multipliers: np.ndarray
    shifts: np.ndarray
    split: int


def exact_factors(reals: np.ndarray, magnitude: int) -> ExactFactors:
    """Mantissas and shifts for values of a known size.

    Parameters
    ----------
    reals
        Ratios of scales [C], float64; may be negative, not zero.
    magnitude
        Largest absolute integer that will be multiplied.

    Raises
    ------
    RangeError
        If a ratio is not finite, is zero, or is so large that the product needs no shift.
    """
    reals = np.atleast_1d(np.asarray(reals, dtype=np.float64))
    split = split_for(magnitude)
    lowest = 2 if split else 1
    multipliers, shifts = [], []
    for channel, real in enumerate(reals.tolist()):
        if not math.isfinite(real) or real == 0.0:
            raise RangeError(
                f"the factor of channel {channel} is {real}",
                why="a scale is zero, infinite or not a number",
                todo="check the ranges and weights of this layer",
            )
        multiplier, exponent = mantissa_and_exponent(real)
        shift = exponent - split + (1 if split else 0)
        if shift < lowest:
            raise RangeError(
                f"the factor of channel {channel} is {real:.3g}",
                why=f"a right shift of {shift} would be needed after a mantissa of 31 bits and a "
                f"value of {magnitude.bit_length()} bits",
                todo="the scales before and after this requantisation are too far apart",
            )
        if shift > _TOP:  # |product| < 2^62: less than half a unit, which rounds to 0
            multiplier, shift = 0, _TOP
        multipliers.append(multiplier)
        shifts.append(shift)
    return ExactFactors(np.array(multipliers, np.int32), np.array(shifts, np.int32), split)


def round_even(value: Value, n: Value) -> Value:
    """``value / 2^n`` to the nearest integer, halves to the even one.

    Parameters
    ----------
    value
        Below 2^62 in absolute value.
    n : int or Value
        1..62.
    """
    value, n = bind(value), bind(n)
    # 2^(n-1) - 1 as a right shift of a constant: LLVM does left shifts by a vector in floating
    # point where there is no AVX2.
    below_half = ((1 << _TOP) - 1) >> (63 - n)
    return (value + below_half + ((value >> n) & 1)) >> n


def wide_product(value: Value, multiplier: Value, split: int) -> Value:
    """``value * multiplier`` for `round_even`, in parts where it would leave 64 bits.

    Parameters
    ----------
    value, multiplier
        The mantissa has 31 bits besides its sign.
    split
        0 for the product itself. Otherwise the result is ``floor(product / 2^(split-1))``, with
        its last bit set where anything below was lost: rounding it to ``shift`` bits, 2 at least,
        gives what rounding the product to ``shift + split - 1`` bits gives.
    """
    if split == 0:
        return value * multiplier
    value = bind(value)
    low = bind((value & ((1 << split) - 1)) * multiplier)
    high = (value >> split) * multiplier + (low >> split)
    # A select in place of the minimum makes TVM's bound analysis contradict itself.
    sticky = minimum(low & ((1 << split) - 1), 1)
    return (high << 1) + sticky


def requantise_even(
    value: Value, multiplier: Value, shift: Value, split: int, zero_point: int, low: int, high: int
) -> Value:
    """Requantise as released: ``clamp(round_even(q m / 2^e) + zero_point, low, high)``.

    Parameters
    ----------
    value
        The integer.
    multiplier, shift
        Arrays of `ExactFactors`, scalar or per channel.
    split
        Of `ExactFactors`.
    zero_point, low, high
        Of the result.

    Returns
    -------
    Value
        In [low, high].
    """
    result = round_even(wide_product(value, multiplier, split), shift)
    return clamp(result + zero_point if zero_point else result, low, high)


def mean_even(total: Value, count: int) -> Value:
    """``total / count`` to the nearest integer, halves to the even one.

    Parameters
    ----------
    total
        A sum.
    count
        At least 1.
    """
    doubled = bind(total * 2 + count)
    up = bind(floor_divide(doubled, 2 * count))
    rest = known(doubled - up * (2 * count), 0, 2 * count - 1)
    return up - (up & 1) * (1 - minimum(rest, 1))
