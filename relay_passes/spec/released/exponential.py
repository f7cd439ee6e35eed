"""Released i-exp: polynomial, shift by the power of two, requantisation to 16 bits.

The released code forms ``E = L(p) 2^(30 - z)``, which needs 51 bits on real models and more than
64 on others, and requantises it to 16 bits with a calibrated scale. Here the shift by z and that
requantisation are one shift of the same product: the same integer, and L alone must fit 61 bits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from ...errors import RangeError
from ..fixed_point import exact_reciprocal
from ..polynomial import check_scale
from ..values import Value, bind, clamp, minimum
from .rounding import mantissa_and_exponent, round_even, wide_product

LN2 = 0.6931
COEFFICIENTS = (0.35815147, 0.96963238, 1.0)
MAX_Z = 30
_LIMIT = 2**15 - 1
_TOP = 62
# The high part of the product stays below 2^60, so what is shifted by 62 rounds to 0.
_PART_BITS = 29


def top_of_polynomial(scale: float) -> int:
    """``q_c = floor(c / a / S^2)``: the polynomial at distance 0, its largest value.

    Parameters
    ----------
    scale
        S of the scores.
    """
    a, _, c = COEFFICIENTS
    return math.floor(c / a / scale**2)


@dataclass(frozen=True)
class ReleasedExponential:
    """Constants of the released form with the calibrated scale of its 16-bit result.

    Parameters
    ----------
    q_ln2
        ``-floor(-0.6931 / S)``.
    q_b, q_c
        ``floor(b / S)`` and ``floor(c / S^2)`` with b, c divided by a; the polynomial is
        ``(p + q_b) p + q_c``.
    reciprocal, reciprocal_shift
        ``z = (d * reciprocal) >> reciprocal_shift``, exactly ``floor(d / q_ln2)``.
    split, multiplier, shift
        ``round_even(L m / 2^(e - 30 + z))``; see `rounding.wide_product`. The shift at z = 0.
    maximum
        The result at distance 0, at most 32767: an upper bound that is a clamp as well.
    """

    q_ln2: int
    q_b: int
    q_c: int
    reciprocal: int
    reciprocal_shift: int
    split: int
    multiplier: int
    shift: int
    maximum: int

    @staticmethod
    def from_scales(scale: float, result_scale: float) -> ReleasedExponential:
        """Constants for the scores of one layer.

        Parameters
        ----------
        scale
            S of the scores, 1/sqrt(d) included.
        result_scale
            What one unit of the 16-bit result is worth, in units of E: the largest E that was
            seen in training, divided by 32767.

        Raises
        ------
        RangeError
            If the scale is too fine for 64 bits, or the result would be 0 for every score.
        """
        check_scale(scale, "an exponential")
        check_scale(result_scale, "an exponential's result")
        a, b, _ = COEFFICIENTS
        q_ln2 = -math.floor(-LN2 / scale)
        q_b = math.floor(b / a / scale)
        q_c = top_of_polynomial(scale)
        if q_c.bit_length() > 61 or MAX_Z * q_ln2 > 2**31:
            raise RangeError(
                f"scale {scale:.3g} is too fine for the released i-exp",
                why=f"its polynomial reaches {q_c}, its distances {MAX_Z * q_ln2}; 61 and 31 bits "
                "serve",
                todo="the ranges of Q and K are too small: check them, or calibrate them again",
            )
        reciprocal, reciprocal_shift = exact_reciprocal(q_ln2, MAX_Z * q_ln2)
        multiplier, exponent = mantissa_and_exponent(1.0 / result_scale)
        bits = q_c.bit_length()
        split = 0 if bits <= _PART_BITS + 1 else bits - _PART_BITS
        shift = exponent - MAX_Z - split + (1 if split else 0)
        maximum = min(round(q_c * multiplier / Fraction(2) ** (exponent - MAX_Z)), _LIMIT)
        if maximum < 1 or shift < (2 if split else 1):
            raise RangeError(
                f"the range of the softmax's exponentials, {result_scale * _LIMIT:.3g}, does not "
                "fit its scores",
                why=f"with scores of scale {scale:.3g} the largest exponential is "
                f"{float(q_c) * 2.0**MAX_Z:.3g} in the same units",
                todo="the ranges of Q, K and the softmax are not of one training run: calibrate "
                "them again",
            )
        return ReleasedExponential(
            q_ln2, q_b, q_c, reciprocal, reciprocal_shift, split, multiplier, shift, maximum
        )

    def evaluate(self, d: Value) -> Value:
        """16-bit exponential of a distance.

        Parameters
        ----------
        d
            Distance from the maximum of the row; negative ones count as 0.

        Returns
        -------
        Value
            In [0, maximum].
        """
        d = bind(clamp(d, 0, MAX_Z * self.q_ln2))
        z = bind((d * self.reciprocal) >> self.reciprocal_shift)
        p = bind(clamp(z * self.q_ln2 - d, 1 - self.q_ln2, 0))  # the clamp only states a bound
        polynomial = (p + self.q_b) * p + self.q_c
        product = wide_product(polynomial, self.multiplier, self.split)
        return clamp(round_even(product, minimum(z + self.shift, _TOP)), 0, self.maximum)
