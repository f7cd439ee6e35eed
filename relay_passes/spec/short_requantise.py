"""Requantisation in 16-bit arithmetic: preset ``accurate``.

A 31-bit multiplier needs a 64-bit product for every entry of an accumulator. But the result has 8
bits (or 15), so 16 bits of the accumulator are enough: shift it, saturate it to 16 bits, multiply
in Q15, and bring the product to the result. On a vector machine that is a quarter of the
instructions; no 64-bit number occurs.

The result differs from exact rounding of ``value * factor`` by one step in a few thousandths of the
entries, all of them near the middle between two steps; `docs/numerics.md` has the figures.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import RangeError
from .values import Value, clamp, q15_multiply, saturate_short

_Q15 = 15
_MAX_PRE_SHIFT = 31
# Bits of a multiplier that no pre-shift normalises. 11 are exact to a twentieth of an 8-bit step.
_ENOUGH_BITS = 11
_LEAST_BITS = 8


@dataclass(frozen=True, eq=False)
class ShortFactors:
    """Constants of ``out = clamp((sat(q15(sat(x >> pre_shift), multiplier) + c) >> shift))``.

    Parameters
    ----------
    multipliers
        int16 [C], Q15, not negative.
    pre_shifts
        int32 [C], 0..31.
    shift
        Fraction bits of the product: 0..8.
    """

    multipliers: NDArray[np.int16]
    pre_shifts: NDArray[np.int32]
    shift: int

    @property
    def values(self) -> NDArray[np.float64]:
        """The real factors they stand for, float64 [C]."""
        return np.ldexp(self.multipliers.astype(np.float64), -_Q15 - self.shift - self.pre_shifts)

    @property
    def excess(self) -> NDArray[np.float64]:
        """By how many steps a result is too large in the mean, float64 [C].

        The product is rounded once more, halves up, which adds half of its last bit; the pre-shift
        floors, which takes up to half of the last bit that it keeps.
        """
        floored = (1 - np.ldexp(1.0, -self.pre_shifts)) * np.ldexp(self.multipliers, -_Q15)
        return np.asarray(np.ldexp(float(self.shift > 0) - floored, -1 - self.shift))


def short_factors(
    reals: NDArray[np.float64],
    magnitude: int,
    low: int,
    high: int,
    zero_point: int = 0,
    least_bits: int = _LEAST_BITS,
) -> ShortFactors:
    """Choose the constants of a short requantisation.

    Parameters
    ----------
    reals
        Factors [C], float64, positive or zero.
    magnitude
        Largest absolute integer that will be multiplied.
    low, high, zero_point
        Of the result. Values up to these bounds are represented before anything saturates.
    least_bits
        Bits that the smallest multiplier must keep.

    Raises
    ------
    RangeError
        If the result needs more than 15 bits, or a factor is negative, not finite, too large for a
        Q15 multiplier, or too small beside the largest: the wide form serves then.
    """
    reals = np.atleast_1d(np.asarray(reals, dtype=np.float64))
    bits = max(abs(low - zero_point), abs(high - zero_point)).bit_length()
    if bits > _Q15 - 1:
        raise _unsuitable(f"a result of {bits + 1} bits", "a product has 15 bits besides its sign")
    if not (np.isfinite(reals).all() and (reals >= 0).all()):
        raise _unsuitable("a factor that is negative or not finite", f"{reals.min()}")
    largest = float(reals.max(initial=0.0))
    if magnitude < 2**_Q15:
        # The value has 16 bits as it is. As many fraction bits as leave every multiplier below 1,
        # and none at all if the multipliers are precise enough without: that rounds only once.
        shift = 0 if reals[reals > 0].min(initial=1.0) >= 2.0 ** (_ENOUGH_BITS - _Q15) else None
        if shift is None:
            room = _Q15 - 1 - bits
            while room > 0 and _multipliers(reals, 0, room).max(initial=0) >= 2**_Q15:
                room -= 1
            shift = room
        pre_shifts = np.zeros(reals.shape, np.int32)
    else:
        shift = _Q15 - 1 - bits
        # Normalised, so that the 16 bits kept of the value just hold what the result can hold.
        _, exponents = np.frexp(np.ldexp(np.where(reals > 0, reals, 2.0**-40), shift))
        pre_shifts = np.clip(-exponents, 0, _MAX_PRE_SHIFT).astype(np.int32)
        carried = _multipliers(reals, pre_shifts, shift) >= 2**_Q15
        pre_shifts = np.where(carried & (pre_shifts > 0), pre_shifts - 1, pre_shifts)
        pre_shifts = pre_shifts.astype(np.int32)
    multipliers = _multipliers(reals, pre_shifts, shift)
    if multipliers.max(initial=0) >= 2**_Q15:
        raise _unsuitable(f"a factor of {largest:.6g}", "a Q15 multiplier is below 1")
    if magnitude < 2**_Q15 and reals.max(initial=0.0) > 0:
        precise = multipliers[reals > 0].min(initial=2**_Q15)
        if precise < 1 << least_bits >> 1:
            raise _unsuitable(
                f"factors from {reals[reals > 0].min():.3g} to {largest:.3g}",
                f"the smallest would keep {int(precise).bit_length()} bits",
            )
    return ShortFactors(multipliers.astype(np.int16), pre_shifts, shift)


def _multipliers(
    reals: NDArray[np.float64], pre_shifts: NDArray[np.int32] | int, shift: int
) -> NDArray[np.int64]:
    scaled = np.ldexp(reals, _Q15 + shift + np.asarray(pre_shifts))
    return np.floor(scaled + 0.5).astype(np.int64)


def _unsuitable(what: str, why: str) -> RangeError:
    return RangeError(what, why=why, todo="use the wide form of requantisation")


def saturating_sum(a: Value, b: Value, low: int, high: int) -> Value:
    """``clamp(a + b, low, high)`` of two values at one scale; bounds within 16 bits.

    Values that have 16 bits are added with saturation, which those bounds make the same.
    """
    return clamp(saturate_short(a + b), low, high)


def requantise_short(
    value: Value,
    multiplier: Value,
    pre_shift: Value,
    shift: int,
    zero_point: int,
    low: int,
    high: int,
    offset: Value = 0,
) -> Value:
    """Scale, saturating, in 16 bits; see the module's text.

    Parameters
    ----------
    value
        An int32 accumulator, or anything narrower.
    multiplier, pre_shift
        Arrays of `ShortFactors`, scalar or per channel.
    shift, zero_point, low, high
        ``clamp((y + zero_point 2^shift + half) >> shift, low, high)`` of the product y.
    offset
        Added to the product as well: a zero point of each channel, times 2^shift.

    Returns
    -------
    Value
        In [low, high], short.
    """
    product = q15_multiply(saturate_short(value >> pre_shift), multiplier)
    half = (1 << shift) >> 1
    addend = offset + ((zero_point << shift) + half)
    if isinstance(addend, int) and addend == 0:
        return clamp(product, low, high)
    return clamp(saturate_short(product + addend) >> shift, low, high)
