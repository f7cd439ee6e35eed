"""i-GELU in two forms: a clipped polynomial in int32, and the published i-erf.

`AccurateGelu` (preset ``accurate``) is ``relu(x)`` minus a bump that vanishes beyond T; all of it
fits int32 for any scale of a 16-bit input. The published form (preset ``paper``) works on the
int32 accumulator with one scale per channel and needs int64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..errors import RangeError
from .fixed_point import Dyadic, requantise
from .polynomial import IntegerPolynomial, check_scale, i_poly
from .values import Value, absolute, bind, clamp, less, maximum, minimum, select, shift_right_round

GELU_LIMIT = 3.69652
"""T: beyond it ``relu(x) - gelu(x)`` is taken as 0."""
GELU_BUMP = 0.00294213
"""c in ``gelu(x) ~ relu(x) - c t (T - t)^4``, ``t = min(|x|, T)``: maximal error 0.0038."""

_WORK_BITS = 15


@dataclass(frozen=True)
class AccurateGelu:
    """Constants of ``gelu(x) ~ relu(x) - c t (T - t)^4`` with ``t = min(|x|, T)``.

    Parameters
    ----------
    limit : int
        ``round(T / S)``.
    up_shift, down_shift : int
        Brings t to 15 bits: ``t' = round((t << up_shift) >> down_shift)``; one of them is 0.
    square_shift, fourth_shift, product_shift : int
        Right shifts (rounding) after ``u'^2``, ``(u'^2)^2`` and ``t' u'^4``; ``u' = T' - t'``.
    product_limit : int
        Maximum of ``t' u'^4`` before its shift; a clamp that never acts and bounds the interval.
    multiplier, shift : int
        Dyadic factor that brings the product to the scale S.
    """

    limit: int
    up_shift: int
    down_shift: int
    square_shift: int
    fourth_shift: int
    product_limit: int
    product_shift: int
    multiplier: int
    shift: int

    @staticmethod
    def from_scale(scale: float) -> AccurateGelu:
        """Constants for inputs (and outputs) of the given scale.

        Parameters
        ----------
        scale : float
            S, 6e-8 .. 0.43; the polynomial's own error dominates between 1e-5 and 6e-2.

        Returns
        -------
        AccurateGelu

        Raises
        ------
        RangeError
            If T is fewer than 8 or more than 2^26 units.
        """
        check_scale(scale, "i-GELU")
        limit = round(GELU_LIMIT / scale)
        if not 8 <= limit <= 2**26:
            raise RangeError(
                f"scale {scale:.3g} cannot serve i-GELU",
                why=f"its polynomial ends at {GELU_LIMIT}, which is {limit} units; 8 to 2^26 serve",
                todo="requantise the input of GELU to a scale between 1e-5 and 6e-2",
            )
        exponent = _WORK_BITS - limit.bit_length()
        up_shift, down_shift = max(exponent, 0), max(-exponent, 0)
        top = _rescale(limit, up_shift, down_shift)  # T', in [2^14, 2^15]
        square_shift = max((top * top).bit_length() - _WORK_BITS, 0)
        square = shift_right_round(top * top, square_shift)
        fourth_shift = max((square * square).bit_length() - _WORK_BITS, 0)
        # t u^4 is largest at t = T / 5; the slack covers the roundings of t, u^2 and u^4.
        shifts = 2 * square_shift + fourth_shift
        product_limit = math.ceil(0.08192 * top**5 / 2**shifts) + 4 * top
        product_shift = max(product_limit.bit_length() - 16, 0)
        # Bump in units of S per unit of the shifted product, with t = t' sigma, u = u' sigma.
        sigma = scale * 2.0 ** (down_shift - up_shift)
        factor = Dyadic.from_real(
            GELU_BUMP * sigma**5 * 2.0 ** (shifts + product_shift) / scale, 15
        )
        return AccurateGelu(
            limit,
            up_shift,
            down_shift,
            square_shift,
            fourth_shift,
            product_limit,
            product_shift,
            factor.multiplier,
            factor.shift,
        )


def _rescale(t: Value, up_shift: int, down_shift: int) -> Value:
    return t << up_shift if up_shift else shift_right_round(t, down_shift)


def gelu_accurate(q: Value, constants: AccurateGelu) -> Value:
    """``gelu(S q) / S`` as ``relu(q)`` minus a polynomial bump.

    Parameters
    ----------
    q : Value
        Input at scale S, any int32 above the smallest.
    constants : AccurateGelu
        From ``AccurateGelu.from_scale(S)``.

    Returns
    -------
    Value
        int32 at the same scale, between about ``-0.17 / S`` and ``max(q, 0)``; every intermediate
        is int32.
    """
    k = constants
    q = bind(q)
    t = bind(_rescale(minimum(absolute(q), k.limit), k.up_shift, k.down_shift))
    u = bind(_rescale(k.limit, k.up_shift, k.down_shift) - t)
    square = bind(shift_right_round(u * u, k.square_shift))
    fourth = shift_right_round(square * square, k.fourth_shift)
    product = shift_right_round(minimum(t * fourth, k.product_limit), k.product_shift)
    return maximum(q, 0) - requantise(product, k.multiplier, k.shift)


@dataclass(frozen=True)
class ErfCoefficients:
    """``erf(y) ~ sgn(y) (a (min(|y|, -b) + b)^2 + c)`` with ``y = x / root_two``.

    Parameters
    ----------
    a, b, c : float
        Coefficients of the polynomial.
    root_two : float
        What stands for the square root of two: the released code uses 1.4142.
    """

    a: float
    b: float
    c: float
    root_two: float


PRINTED_ERF = ErfCoefficients(-0.2888, -1.769, 1.0, math.sqrt(2.0))
RELEASED_ERF = ErfCoefficients(-0.2888, -1.769, 1.0, 1.4142)

RELEASED_ERF_SHIFT = 14
_FACTOR_BITS = 20


@dataclass(frozen=True, eq=False)
class PaperGelu:
    """Constants of the published form, one entry per channel: the operands of the operator.

    Parameters
    ----------
    q_b : numpy.ndarray
        int32 [C], ``floor(b / S')``, negative; ``S' = S / sqrt(2)``.
    q_c : numpy.ndarray
        int64 [C], ``floor(c / (a S'^2))``, negative.
    q_1 : numpy.ndarray
        int32 [C], ``floor(1 / S_erf)``, negative.
    erf_shift : numpy.ndarray
        int32 [C], right shift (floor) of the i-erf polynomial.
    scales : numpy.ndarray
        float64 [C], scale of the result, ``S S_erf / 2``: negative, since a is.
    """

    q_b: np.ndarray
    q_c: np.ndarray
    q_1: np.ndarray
    erf_shift: np.ndarray
    scales: np.ndarray

    @staticmethod
    def from_scales(
        scales: np.ndarray,
        coefficients: ErfCoefficients = PRINTED_ERF,
        erf_shift: int | None = None,
    ) -> PaperGelu:
        """Constants for an accumulator with one scale, or one per channel.

        Parameters
        ----------
        scales : numpy.ndarray
            S [C] (or [1]) of the input, positive.
        coefficients : ErfCoefficients
            `PRINTED_ERF` or `RELEASED_ERF`.
        erf_shift : int, optional
            14 as in the released code, which is silently wrong for coarse scales (S > 3e-4).
            By default the smallest shift that leaves the result of i-erf 20 bits, per channel.

        Returns
        -------
        PaperGelu

        Raises
        ------
        RangeError
            If a scale is not positive, too coarse (the polynomial has fewer than 4 units, or
            the given shift leaves nothing of it) or too fine.
        """
        q_b, q_c, q_1, shifts, out = [], [], [], [], []
        for channel, scale in enumerate(np.atleast_1d(np.asarray(scales, dtype=np.float64))):
            where = f"i-GELU, channel {channel}"
            check_scale(float(scale), where)
            inner = float(scale) / coefficients.root_two
            poly = IntegerPolynomial.from_scale(
                coefficients.a, coefficients.b, coefficients.c, inner
            )
            one = math.floor(1.0 / poly.scale)
            shift = erf_shift
            if shift is None:
                shift = max(abs(one).bit_length() - _FACTOR_BITS, 0)
            erf_scale = math.ldexp(poly.scale, shift)
            one = math.floor(1.0 / erf_scale)
            if not (-(2**31) < poly.q_b <= -4 and -(2**31) < one <= -256):
                raise RangeError(
                    f"scale {scale:.3g} of {where} cannot serve the published i-GELU",
                    why=f"with a shift of {shift}, q_b = {poly.q_b} and 1 is {one} units",
                    todo="use a finer or coarser scale, no fixed shift, or the accurate form",
                )
            q_b.append(poly.q_b)
            q_c.append(poly.q_c)
            q_1.append(one)
            shifts.append(shift)
            out.append(float(scale) * erf_scale / 2.0)
        return PaperGelu(
            np.array(q_b, np.int32),
            np.array(q_c, np.int64),
            np.array(q_1, np.int32),
            np.array(shifts, np.int32),
            np.array(out, np.float64),
        )


def i_erf(q: Value, q_b: Value, q_c: Value, erf_shift: Value) -> Value:
    """Published i-erf: ``sgn(q) ((min(|q|, -q_b) + q_b)^2 + q_c) >> erf_shift``.

    Parameters
    ----------
    q : Value
        Input at scale S'.
    q_b, q_c, erf_shift : Value
        Constants of `PaperGelu`, scalar or per channel.

    Returns
    -------
    Value
        int64 inside; below 2^20 after a shift chosen by ``PaperGelu.from_scales``.
    """
    q = bind(q)
    y = bind(i_poly(minimum(absolute(q), -q_b), q_b, q_c))
    signed = select(less(q, 0), -y, select(less(0, q), y, 0))
    return signed >> erf_shift


def gelu_paper(q: Value, q_b: Value, q_c: Value, q_1: Value, erf_shift: Value) -> Value:
    """Published i-GELU: ``q (i_erf(q) + q_1)``.

    Parameters
    ----------
    q : Value
        int32 accumulator.
    q_b, q_c, q_1, erf_shift : Value
        Constants of `PaperGelu`, scalar or per channel.

    Returns
    -------
    Value
        int64 at the (negative) scale ``PaperGelu.scales``.
    """
    q = bind(q)
    # |erf| <= 1: this holds for constants of `from_scales`, but the interval of a minimum and a sum
    # of per-channel arrays cannot know it, and without it the product would seem to leave int64.
    erf = clamp(i_erf(q, q_b, q_c, erf_shift), q_1, -q_1)
    return q * (erf + q_1)
