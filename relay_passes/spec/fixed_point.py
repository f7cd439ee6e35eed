"""Dyadic numbers ``m / 2^e`` and requantisation by them.

A real factor known at compile time becomes an integer multiplier and a right shift, so that a
change of scale needs one multiplication and one shift, with rounding half up, and no division.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..errors import RangeError
from .values import Value, clamp, shift_right_round

MAX_SHIFT = 62
"""Largest right shift of an int64 product."""


@dataclass(frozen=True)
class Dyadic:
    """A real number as ``multiplier / 2^shift``.

    Parameters
    ----------
    multiplier
        May be negative or zero.
    shift
        0..62.
    """

    multiplier: int
    shift: int

    @property
    def value(self) -> float:
        """The real number it stands for."""
        return math.ldexp(self.multiplier, -self.shift)

    @staticmethod
    def from_real(real: float, bits: int = 31) -> Dyadic:
        """Nearest dyadic number whose multiplier has `bits` bits at most, besides its sign.

        Parameters
        ----------
        real
            The factor.
        bits
            1..31: with 31 the relative error is at most 2^-31, with 15 at most 2^-15.

        Raises
        ------
        RangeError
            If `real` is not finite, is too large, or is not zero and vanishes.
        """
        vector = dyadic_vector(np.array([real]), bits)
        return Dyadic(int(vector.multipliers[0]), vector.shift)


@dataclass(frozen=True)
class DyadicVector:
    """One dyadic number per channel, with a common shift.

    Parameters
    ----------
    multipliers
        int32 [C].
    shift
        0..62.
    """

    multipliers: np.ndarray
    shift: int

    @property
    def values(self) -> np.ndarray:
        """The real numbers they stand for, float64 [C]."""
        return np.ldexp(self.multipliers.astype(np.float64), -self.shift)


def dyadic_vector(reals: np.ndarray, bits: int = 31) -> DyadicVector:
    """Dyadic multipliers of several channels with one shift, set by the largest of them.

    Parameters
    ----------
    reals
        Factors [C], float64; negative and zero entries are allowed.
    bits
        Bits of the largest multiplier, 1..31, besides its sign.

    Raises
    ------
    RangeError
        If a factor is not finite or too large, or if a factor that is not zero becomes zero.
    """
    reals = np.atleast_1d(np.asarray(reals, dtype=np.float64))
    if not 1 <= bits <= 31:
        raise RangeError(
            f"a multiplier of {bits} bits",
            why="multipliers are stored as int32",
            todo="use 1 to 31 bits",
        )
    if not np.isfinite(reals).all():
        channel = int(np.flatnonzero(~np.isfinite(reals))[0])
        raise RangeError(
            f"the factor of channel {channel} is {reals[channel]}",
            why="a scale is zero, infinite or not a number",
            todo="calibrate again, with data that reaches this tensor",
        )
    largest = float(np.abs(reals).max()) if reals.size else 0.0
    if largest == 0.0:
        return DyadicVector(np.zeros(reals.shape, np.int32), 0)
    shift = min(bits - math.frexp(largest)[1], MAX_SHIFT)
    if round(math.ldexp(largest, shift)) >= 1 << bits:  # rounding carried into one more bit
        shift -= 1
    if shift < 0:
        raise RangeError(
            f"a factor of {largest:.6g} is too large for a multiplier of {bits} bits",
            why=f"a right shift of {shift} would be needed",
            todo="the scales before and after this requantisation are too far apart",
        )
    # Scaling by a power of two is exact; only the rounding to an integer is not.
    multipliers = np.floor(np.ldexp(reals, shift) + 0.5).astype(np.int64)
    lost = np.flatnonzero((multipliers == 0) & (reals != 0))
    if lost.size:
        channel = int(lost[0])
        raise RangeError(
            f"channel {channel} loses all its bits",
            why=f"its factor is {reals[channel]:.3g}, the largest is {largest:.3g}, and their "
            f"common shift is {shift}",
            todo="use more bits of mantissa, or scales that are closer together",
        )
    return DyadicVector(multipliers.astype(np.int32), shift)


def requantise(value: Value, multiplier: Value, shift: int) -> Value:
    """``round_half_up(value * multiplier / 2^shift)``.

    Parameters
    ----------
    value
        An accumulator or any other integer.
    multiplier
        Mantissa of the dyadic factor, scalar or per channel.
    shift
        0..62.

    Returns
    -------
    Value
        Unclamped; int32 when the product provably fits, else int64 inside.
    """
    return shift_right_round(value * multiplier, shift)


def requantise_clamped(
    value: Value,
    multiplier: Value,
    shift: int,
    zero_point: int,
    low: int,
    high: int,
    offset: Value = 0,
) -> Value:
    """`requantise`, plus zero points, clamped to [low, high]: the operator of that name."""
    result = requantise(value, multiplier, shift)
    addend = offset + zero_point
    if isinstance(addend, int) and addend == 0:
        return clamp(result, low, high)
    return clamp(result + addend, low, high)


def exact_reciprocal(divisor: int, largest: int) -> tuple[int, int]:
    """Find m and s with ``(d * m) >> s == d // divisor`` for every d in [0, largest].

    Parameters
    ----------
    divisor
        At least 1.
    largest
        At most 2^31.

    Returns
    -------
    multiplier, shift : int
        The smallest shift that is exact; their product with `largest` fits 63 bits.
    """
    for shift in range(62):
        multiplier = -(-(1 << shift) // divisor)
        excess = multiplier * divisor - (1 << shift)
        # Exact as long as the excess cannot carry a quotient's fraction (d mod divisor) over 1.
        if excess * largest < 1 << shift:
            return multiplier, shift
    raise RangeError(  # not reachable for largest <= 2^31; kept so that a misuse is no silence
        f"no reciprocal of {divisor} is exact up to {largest}",
        why="it would need more than 62 bits",
        todo="reduce the range of the dividend",
    )
