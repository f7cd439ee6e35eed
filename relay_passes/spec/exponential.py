"""i-exp: the exponential of a non-positive number, in integers.

The argument comes as a distance ``d >= 0`` from the maximum of its row, in units of the scale S;
the result stands for ``exp(-S d)`` in units of ``1 / maximum``.

`PolynomialExponential` (preset ``paper``) is the published form: it divides by ``ln 2 / S``, here
by an exact reciprocal multiplication, and needs int64 for fine scales. `BinaryExponential` (i-tanh)
splits in base 2, where the split is a shift and a mask, and stays in int32. The softmax of preset
``accurate`` has a form of 16 bits, `ibert_tvm.relay_passes.spec.short_softmax`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..errors import RangeError
from .fixed_point import MAX_SHIFT, Dyadic, exact_reciprocal, requantise
from .polynomial import check_scale
from .released.exponential import ReleasedExponential
from .values import Value, bind, clamp, minimum, shift_right_round

LOG2_E = math.log2(math.e)

CUBIC = (1.0, 0.69183457, 0.23192877, 0.04015722)
"""``2^-p`` on [0, 1) with value 1 at 0, minimax: maximal error 6.31e-5."""

_FRACTION_BITS = 15
_INT32_MAX = 2**31 - 1


@dataclass(frozen=True)
class BinaryExponential:
    """Constants of ``exp(-2 |x|)`` in base 2, for i-tanh.

    ``y = d 2 S log2(e)`` in Q(fraction_bits), then ``2^-y = 2^-p >> z`` with ``2^-p`` a polynomial.
    The result for ``d = 0`` is c0 exactly.

    Parameters
    ----------
    limit
        D; larger distances are cut here, where the result is 0.
    pre_shift, multiplier, shift
        ``y = ((d >> pre_shift) * multiplier + half) >> shift``.
    fraction_bits
        f.
    c0, c1, c2, c3
        ``L(p) = c0 - p (c1 - p (c2 - p c3))``, p in Q(f), in units of c0.
    """

    limit: int
    pre_shift: int
    multiplier: int
    shift: int
    fraction_bits: int
    c0: int
    c1: int
    c2: int
    c3: int

    @property
    def maximum(self) -> int:
        """The result at distance 0."""
        return self.c0

    @staticmethod
    def for_tanh(scale: float) -> BinaryExponential:
        """Constants for x at the given scale, result in units of 2^-15.

        Parameters
        ----------
        scale
            S of the input of tanh.

        Raises
        ------
        RangeError
            If the scale is so coarse that one step halves the result, or too fine for int32.
        """
        check_scale(scale, "an exponential")
        step = 2.0 * scale * LOG2_E  # exponents of two per unit of d
        if step > 1.0:
            raise RangeError(
                f"scale {scale:.3g} is too coarse for i-tanh",
                why=f"one unit changes its exponential by a factor of 2^{2.0 * scale * LOG2_E:.3g}",
                todo="requantise the input of tanh to a finer scale",
            )
        limit = math.ceil(17 / step)  # 2^-y rounds to 0 from y = 17 on
        if limit > 2**30:
            raise RangeError(
                f"scale {scale:.3g} is too fine for i-tanh",
                why=f"its exponential only vanishes at a distance of {limit}, beyond 30 bits",
                todo="requantise the input of tanh to a coarser scale",
            )
        pre_shift = max(limit.bit_length() - 16, 0)
        largest = limit >> pre_shift
        factor = Dyadic.from_real(math.ldexp(step, _FRACTION_BITS + pre_shift), 31)
        multiplier, shift = factor.multiplier, factor.shift
        while largest * multiplier + (1 << shift >> 1) > _INT32_MAX:  # the product stays in int32
            shift -= 1
            multiplier = round(math.ldexp(step, _FRACTION_BITS + pre_shift + shift))
        c0, c1, c2, c3 = (round(c * 2**15) for c in CUBIC)
        return BinaryExponential(
            limit, pre_shift, multiplier, shift, _FRACTION_BITS, c0, c1, c2, c3
        )


def binary_exponential(d: Value, constants: BinaryExponential) -> Value:
    """``exp(-2 S d)`` by powers of two.

    Parameters
    ----------
    d
        Absolute value of tanh's argument, int32; negative ones count as 0.
    constants
        From ``BinaryExponential.for_tanh(S)``.

    Returns
    -------
    Value
        In [0, constants.maximum]; every intermediate is int32.
    """
    k = constants
    f = k.fraction_bits
    y = bind(requantise(clamp(d, 0, k.limit) >> k.pre_shift, k.multiplier, k.shift))
    p = bind(y & ((1 << f) - 1))
    slope = k.c1 - shift_right_round(p * (k.c2 - shift_right_round(p * k.c3, f)), f)
    mantissa = k.c0 - shift_right_round(p * slope, f)
    return minimum(shift_right_round(mantissa, y >> f), k.maximum)


@dataclass(frozen=True)
class ExponentialCoefficients:
    """``exp(p) ~ a (p + b)(p + d) + c`` on (-ln2, 0].

    Parameters
    ----------
    a, b, d, c
        Coefficients; the printed formula has d = b, the released code d = 0.
    ln2
        The value used for ln 2.
    round_up
        Whether ``ln2 / S`` is rounded up (released code: floor of the negative) or down (paper).
    """

    a: float
    b: float
    d: float
    c: float
    ln2: float
    round_up: bool


RELEASED_EXPONENTIAL = ExponentialCoefficients(
    0.35815147, 0.96963238 / 0.35815147, 0.0, 1.0, 0.6931, True
)
PRINTED_EXPONENTIAL = ExponentialCoefficients(0.3585, 1.353, 1.353, 0.344, math.log(2.0), False)


@dataclass(frozen=True)
class PolynomialExponential:
    """Constants of the published form (preset ``paper``).

    ``d = z q_ln2 + r``, ``p = -r``, ``L = (p + q_b)(p + q_d) + q_c``, result ``L >> z`` brought to
    `maximum` by a dyadic multiplier.

    Parameters
    ----------
    q_ln2
        ``ln 2 / S`` as an integer, positive.
    q_b, q_d, q_c
        Released code: ``q_d = 0``; printed formula: ``q_d = q_b``.
    max_z
        Largest exponent (30 as published); the distance is cut at ``max_z * q_ln2``.
    reciprocal, reciprocal_shift
        ``z = (d * reciprocal) >> reciprocal_shift``, exactly ``floor(d / q_ln2)`` in that range.
    pre_shift
        Right shift (rounding) that brings L to 31 bits; 0 unless the scale is very fine.
    multiplier, shift
        ``E = (L * multiplier + half) >> (shift + z)``.
    maximum
        Upper clamp of the result, what distance 0 gives.
    """

    q_ln2: int
    q_b: int
    q_d: int
    q_c: int
    max_z: int
    reciprocal: int
    reciprocal_shift: int
    pre_shift: int
    multiplier: int
    shift: int
    maximum: int

    @staticmethod
    def from_scale(
        scale: float,
        maximum: int = 32767,
        coefficients: ExponentialCoefficients = RELEASED_EXPONENTIAL,
        max_z: int = 30,
    ) -> PolynomialExponential:
        """Constants for the scores of a softmax.

        Parameters
        ----------
        scale
            Scale of the scores, 1/sqrt(d) included.
        maximum
            Result at distance 0.
        coefficients
            `RELEASED_EXPONENTIAL` or `PRINTED_EXPONENTIAL`.
        max_z
            Where the exponential is cut, in powers of two.

        Raises
        ------
        RangeError
            If the scale is too coarse for the split by ln 2, or too fine for int64.
        """
        check_scale(scale, "an exponential")
        quotient = coefficients.ln2 / scale
        q_ln2 = math.ceil(quotient) if coefficients.round_up else math.floor(quotient)
        if quotient < 4:
            raise RangeError(
                f"scale {scale:.3g} is too coarse for i-exp",
                why=f"ln 2 is only {quotient:.2f} units, so the split by ln 2 means nothing",
                todo="use finer scales of Q and K, or the preset accurate",
            )
        q_b, q_d = math.floor(coefficients.b / scale), math.floor(coefficients.d / scale)
        q_c = math.floor(coefficients.c / (coefficients.a * scale * scale))
        one = q_b * q_d + q_c
        if one >= 2**61 or max_z * q_ln2 > 2**30:
            raise RangeError(
                f"scale {scale:.3g} is too fine for i-exp",
                why=f"the polynomial reaches {one}, the distance {max_z * q_ln2}",
                todo="use coarser scales of Q and K, or the preset accurate",
            )
        reciprocal, reciprocal_shift = exact_reciprocal(q_ln2, max_z * q_ln2)
        pre_shift = max(one.bit_length() - 31, 0)
        factor = Dyadic.from_real(maximum / math.ldexp(one, -pre_shift), 15)
        # z is added to the shift, and both together must stay below 63; the bits that go are
        # below the last bit of the result.
        excess = max(factor.shift + max_z - MAX_SHIFT, 0)
        multiplier = shift_right_round(factor.multiplier, excess)
        return PolynomialExponential(
            q_ln2,
            q_b,
            q_d,
            q_c,
            max_z,
            reciprocal,
            reciprocal_shift,
            pre_shift,
            multiplier,
            factor.shift - excess,
            maximum,
        )


def polynomial_exponential(d: Value, constants: PolynomialExponential) -> Value:
    """``exp(-S d)`` as published: split by ln 2, second-degree polynomial, shift.

    Parameters
    ----------
    d
        Distance from the maximum; negative ones count as 0.
    constants
        From ``PolynomialExponential.from_scale(S)``.

    Returns
    -------
    Value
        In [0, constants.maximum].
    """
    k = constants
    d = bind(clamp(d, 0, k.max_z * k.q_ln2))
    z = bind((d * k.reciprocal) >> k.reciprocal_shift)
    p = bind(clamp(z * k.q_ln2 - d, 1 - k.q_ln2, 0))  # the clamp only states -q_ln2 < p <= 0
    polynomial = (p + k.q_b) * (p + k.q_d) + k.q_c
    mantissa = shift_right_round(polynomial, k.pre_shift) * k.multiplier
    return clamp(shift_right_round(mantissa, z + k.shift), 0, k.maximum)


Exponential = PolynomialExponential | ReleasedExponential


def exponential(d: Value, constants: Exponential) -> Value:
    """``exp(-S d)`` in the form of its constants.

    Parameters
    ----------
    d
        Distance from the maximum of the row; negative ones count as 0.
    constants : PolynomialExponential or ReleasedExponential
        The form and its constants.

    Returns
    -------
    Value
        In [0, constants.maximum].
    """
    if isinstance(constants, PolynomialExponential):
        return polynomial_exponential(d, constants)
    return constants.evaluate(d)
