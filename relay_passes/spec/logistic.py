"""i-sigmoid and i-SiLU: the logistic function as a clipped polynomial, in 16-bit arithmetic.

With ``t = min(|x|, T)``, ``u = 1 - t / T`` and ``w = u^4``

    sigmoid(-|x|) ~ w (a + w (b + w c)),

which falls to 0 with all of its slopes at T. No exponential, no table and no division: six products
of 16 bits per entry. The coefficients are minimax fits (linear programming on a grid, the best T):
of the function itself for sigmoid, with ``a + b + c = 1/2``, and of ``t sigmoid(-t)`` for SiLU,
which is ``relu(x)`` minus that. Their sum is below 1 and ``b + c`` positive, so every intermediate
is one of [0, 1) in Q15.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..errors import RangeError
from .polynomial import CLIPPED_TOP, check_scale
from .values import Value, absolute, bind, clamp, maximum, minimum, q15_multiply, short

SILU_LIMIT = 9.65
"""T of i-SiLU for beta = 1: beyond it ``relu(x) - silu(x)`` is taken as 0."""
SIGMOID_LIMIT = 8.75
"""T of i-sigmoid: beyond it the result is 0 or 1."""
SILU_COEFFICIENTS = (0.08202364, 0.63075988, -0.18426246)
"""a, b, c: maximal error of ``t sigmoid(-t)`` 0.0032."""
SIGMOID_COEFFICIENTS = (0.14197689, 0.66862687, -0.31060377)
"""a, b, c: maximal error of ``sigmoid(-t)`` 0.0012."""
SIGMOID_BITS = 15
"""The scale of i-sigmoid's result is 2^-15."""

_MAX_UP_SHIFT = 10
_HALF = 2**14
_LARGEST = 2**15 - 1


def is_logistic_scale(scale: float, limit: float) -> bool:
    """Tell whether the polynomial that ends at `limit` can be computed at a scale."""
    return _up_shift(scale, limit) is not None


def _up_shift(scale: float, limit: float) -> int | None:
    """The k of ``scale = limit 2^k / 32640``."""
    for shift in range(_MAX_UP_SHIFT + 1):
        if math.isclose(scale, math.ldexp(limit / CLIPPED_TOP, shift), rel_tol=1e-6):
            return shift
    return None


@dataclass(frozen=True)
class LogisticPolynomial:
    """Constants of ``sigmoid(-|x|) ~ w (a + w (b + w c))``, ``w = (1 - t / T)^4``.

    Parameters
    ----------
    limit : int
        T in units of the input.
    up_shift : int
        Brings T to 15 bits: ``u = (limit - t) << up_shift``, in Q15.
    a, b, c : int
        Coefficients in Q15, divided by powers of what ``w`` is at 0, which is not quite 1.
    """

    limit: int
    up_shift: int
    a: int
    b: int
    c: int

    @staticmethod
    def from_scale(
        scale: float, limit: float, coefficients: tuple[float, float, float]
    ) -> LogisticPolynomial:
        """Constants for inputs of a scale that `clipped_scale` gives.

        Parameters
        ----------
        scale : float
            ``T 2^k / 32640`` with k from 0 to 10.
        limit : float
            T.
        coefficients : tuple of float
            `SILU_COEFFICIENTS` or `SIGMOID_COEFFICIENTS`.

        Returns
        -------
        LogisticPolynomial

        Raises
        ------
        RangeError
            If the scale is another one.
        """
        check_scale(scale, "a logistic function")
        up_shift = _up_shift(scale, limit)
        if up_shift is None:
            raise RangeError(
                f"scale {scale:.3g} cannot serve a logistic function",
                why=f"its polynomial ends at {limit:.4g}, which must be 32640 / 2^k units, k from "
                f"0 to {_MAX_UP_SHIFT}",
                todo="requantise its input to a scale of "
                "ibert_tvm.relay_passes.spec.polynomial.clipped_scale",
            )
        units = CLIPPED_TOP >> up_shift
        # u reaches T in Q15, not 1, and w its fourth power.
        top = math.ldexp(units << up_shift, -15) ** 4
        a, b, c = (
            round(value / top**power * 2**15) for power, value in enumerate(coefficients, start=1)
        )
        return LogisticPolynomial(units, up_shift, a, b, c)


def _below_zero(t: Value, constants: LogisticPolynomial) -> Value:
    """``sigmoid(-t)`` in Q15, t in [0, limit]."""
    k = constants
    u = bind(short((k.limit - t) << k.up_shift))
    square = bind(q15_multiply(u, u))
    w = bind(q15_multiply(square, square))
    inner = k.b + q15_multiply(w, k.c)
    return q15_multiply(w, k.a + q15_multiply(w, inner))


def silu(q: Value, constants: LogisticPolynomial) -> Value:
    """``x sigmoid(beta x)`` as ``relu(x)`` minus ``t sigmoid(-beta t)``, in 16-bit arithmetic.

    Parameters
    ----------
    q : Value
        ``x / S``, cut at +-32767, with S from ``clipped_scale(SILU_LIMIT / beta, ...)``.
    constants : LogisticPolynomial
        With `SILU_COEFFICIENTS`; beta has no other part in it than that of the scale.

    Returns
    -------
    Value
        At the same scale, between about ``-0.28 / (beta S)`` and ``max(q, 0)``; it and every
        intermediate have 16 bits.
    """
    q = bind(short(clamp(q, -_LARGEST, _LARGEST)))
    t = bind(minimum(absolute(q), constants.limit))
    return short(maximum(q, 0) - q15_multiply(_below_zero(t, constants), t))


def sigmoid(q: Value, constants: LogisticPolynomial) -> Value:
    """``1 / (1 + exp(-x))``, in 16-bit arithmetic.

    Parameters
    ----------
    q : Value
        ``x / S``, cut at +-32767, with S from ``clipped_scale(SIGMOID_LIMIT, ...)``.
    constants : LogisticPolynomial
        With `SIGMOID_COEFFICIENTS`.

    Returns
    -------
    Value
        In units of 2^-15, in [1, 32767]; ``sigmoid(-q) = 2^15 - sigmoid(q)`` but for q = 0.
    """
    q = bind(short(clamp(q, -_LARGEST, _LARGEST)))
    t = minimum(absolute(q), constants.limit)
    # The distance from 1/2, with the sign of q: no comparison, which would leave 16 bits.
    distance = maximum(_HALF - 1 - _below_zero(t, constants), 0)
    sign = (clamp(q, -1, 0) << 1) + 1
    return short(_HALF + sign * distance)
