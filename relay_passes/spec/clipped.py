"""Functions that fall to 0 within a limit, as clipped polynomials in 16-bit arithmetic.

With ``t = min(|x|, T)``, ``u = 1 - t / T`` and ``w = u^n``

    f(-|x|) ~ w (a + w (b + w c)),

which falls to 0 with all of its slopes at T: no exponential, no table, no division. The
coefficients are minimax fits (linear programming on a grid, the best T and n). ``a + b + c`` is
below 1 and ``b + c`` positive, so every intermediate is one of [0, 1) in Q15.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ..errors import RangeError
from .polynomial import check_scale
from .values import Value, bind, q15_multiply, short

CLIPPED_TOP = 32640
"""The limit of a clipped polynomial in units of its finest scale: 255 * 2^7, just below 1 in Q15,
so that half of it, a quarter ... are whole numbers too."""


_MAX_UP_SHIFT = 10
_LARGEST = 2**15 - 1


def clipped_scale(limit: float, largest: float) -> float:
    """Scale at which a polynomial that ends at a limit is computed in 16 bits.

    Parameters
    ----------
    limit
        Where the polynomial ends: it fills 15 bits after a shift.
    largest
        Absolute value that the input reaches; it is represented in 14 bits at least.

    Returns
    -------
    float
        The smallest scale ``limit 2^k / CLIPPED_TOP``, ``k >= 0``, with ``largest / scale < 2^14``.
    """
    scale = limit / CLIPPED_TOP
    while largest / scale >= 2**14:
        scale *= 2.0
    return scale


@dataclass(frozen=True)
class ClippedFunction:
    """A function of ``-|x|`` and its polynomial.

    Parameters
    ----------
    name
        For messages.
    limit
        T: beyond it the function is taken as 0.
    power
        n of ``w = u^n``: 3 or 4.
    coefficients
        a, b, c.
    """

    name: str
    limit: float
    power: int
    coefficients: tuple[float, float, float]

    def of_multiple(self, beta: float) -> ClippedFunction:
        """Return ``f(-|beta x|)`` as a function of ``-|x|``."""
        return replace(self, limit=self.limit / beta)

    def up_shift(self, scale: float) -> int | None:
        """The k of a scale ``T 2^k / 32640``, at which it can be computed; None for others."""
        for shift in range(_MAX_UP_SHIFT + 1):
            if math.isclose(scale, math.ldexp(self.limit / CLIPPED_TOP, shift), rel_tol=1e-6):
                return shift
        return None


@dataclass(frozen=True)
class ClippedPolynomial:
    """Constants of ``w (a + w (b + w c))``, ``w = (1 - t / T)^n``.

    Parameters
    ----------
    limit
        T in units of the input.
    up_shift
        Brings T to 15 bits: ``u = (limit - t) << up_shift``, in Q15.
    a, b, c
        Coefficients in Q15, divided by powers of what ``w`` is at 0, which is not quite 1.
    """

    limit: int
    up_shift: int
    a: int
    b: int
    c: int

    @staticmethod
    def from_scale(scale: float, function: ClippedFunction) -> ClippedPolynomial:
        """Constants for inputs of a scale that `clipped_scale` gives.

        Parameters
        ----------
        scale
            ``T 2^k / 32640`` with k from 0 to 10.
        function
            What is approximated.

        Raises
        ------
        RangeError
            If the scale is another one.
        """
        check_scale(scale, function.name)
        up_shift = function.up_shift(scale)
        if up_shift is None:
            raise RangeError(
                f"scale {scale:.3g} cannot serve {function.name}",
                why=f"its polynomial ends at {function.limit:.4g}, which must be 32640 / 2^k "
                f"units, k from 0 to {_MAX_UP_SHIFT}",
                todo="requantise its input to a scale of "
                "ibert_tvm.relay_passes.spec.clipped.clipped_scale",
            )
        units = CLIPPED_TOP >> up_shift
        # u reaches T in Q15, not 1.
        top = math.ldexp(units << up_shift, -15) ** function.power
        a, b, c = (
            round(value / top**power * 2**15)
            for power, value in enumerate(function.coefficients, start=1)
        )
        # a + w b stays below 1 in Q15. Where T is some dozens of units that cuts b, by less than a
        # quarter of a unit of the result.
        most = math.floor(min((_LARGEST - a) / top, _LARGEST))
        return ClippedPolynomial(units, up_shift, a, min(b, most), c)


def clipped_polynomial(t: Value, constants: ClippedPolynomial, power: int) -> Value:
    """``f(-t)`` in Q15.

    Parameters
    ----------
    t
        In [0, limit].
    constants
        Of the function.
    power
        Its n, 3 or 4.

    Returns
    -------
    Value
        In [0, 2^15); it and every intermediate have 16 bits.
    """
    k = constants
    u = bind(short((k.limit - t) << k.up_shift))
    square = bind(q15_multiply(u, u))
    w = bind(q15_multiply(square, u if power == 3 else square))
    inner = k.b + q15_multiply(w, k.c)
    return q15_multiply(w, k.a + q15_multiply(w, inner))
