"""i-sigmoid and i-SiLU: the logistic function as a clipped polynomial, in 16-bit arithmetic.

Six products of 16 bits per entry. The coefficients fit the function itself for sigmoid, with ``a +
b + c = 1/2``, and ``t sigmoid(-t)`` for SiLU, which is ``relu(x)`` minus that.
"""

from __future__ import annotations

from .clipped import ClippedFunction, ClippedPolynomial, clipped_polynomial
from .values import Value, absolute, bind, clamp, maximum, minimum, q15_multiply, short

SILU = ClippedFunction("i-SiLU", 9.65, 4, (0.08202364, 0.63075988, -0.18426246))
"""``sigmoid(-t)`` for beta = 1: maximal error of ``t sigmoid(-t)`` 0.0032."""
SIGMOID = ClippedFunction("i-sigmoid", 8.75, 4, (0.14197689, 0.66862687, -0.31060377))
"""Maximal error of ``sigmoid(-t)`` 0.0012."""
SIGMOID_BITS = 15
"""The scale of i-sigmoid's result is 2^-15."""

_HALF = 2**14
_LARGEST = 2**15 - 1


def silu(q: Value, constants: ClippedPolynomial) -> Value:
    """``x sigmoid(beta x)`` as ``relu(x)`` minus ``t sigmoid(-beta t)``, in 16-bit arithmetic.

    Parameters
    ----------
    q
        ``x / S``, cut at +-32767, with S from ``clipped_scale(SILU.limit / beta, ...)``.
    constants
        Of `SILU`; beta has no other part in it than that of the scale.

    Returns
    -------
    Value
        At the same scale, between about ``-0.28 / (beta S)`` and ``max(q, 0)``; it and every
        intermediate have 16 bits.
    """
    q = bind(short(clamp(q, -_LARGEST, _LARGEST)))
    t = bind(minimum(absolute(q), constants.limit))
    return short(maximum(q, 0) - q15_multiply(clipped_polynomial(t, constants, SILU.power), t))


def sigmoid(q: Value, constants: ClippedPolynomial) -> Value:
    """``1 / (1 + exp(-x))``, in 16-bit arithmetic.

    Parameters
    ----------
    q
        ``x / S``, cut at +-32767, with S from ``clipped_scale(SIGMOID.limit, ...)``.
    constants
        Of `SIGMOID`.

    Returns
    -------
    Value
        In units of 2^-15, in [1, 32767]; ``sigmoid(-q) = 2^15 - sigmoid(q)`` but for q = 0.
    """
    q = bind(short(clamp(q, -_LARGEST, _LARGEST)))
    t = minimum(absolute(q), constants.limit)
    # The distance from 1/2, with the sign of q: no comparison, which would leave 16 bits.
    distance = maximum(_HALF - 1 - clipped_polynomial(t, constants, SIGMOID.power), 0)
    sign = (clamp(q, -1, 0) << 1) + 1
    return short(_HALF + sign * distance)
