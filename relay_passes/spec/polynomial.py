"""i-poly: a second-degree polynomial of a quantised value, in integers (I-BERT, algorithm 1)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..errors import RangeError
from .values import Value, bind


@dataclass(frozen=True)
class IntegerPolynomial:
    """``a (x + b)^2 + c`` for ``x = S q`` as ``(q + q_b)^2 + q_c``.

    Parameters
    ----------
    q_b, q_c
        ``floor(b / S)`` and ``floor(c / (a S^2))``.
    scale
        Scale of the result, ``a S^2`` (negative when a is).
    """

    q_b: int
    q_c: int
    scale: float

    @staticmethod
    def from_scale(a: float, b: float, c: float, scale: float) -> IntegerPolynomial:
        """Derive the integer constants for inputs of the given scale.

        Parameters
        ----------
        a, b, c
            Coefficients of ``a (x + b)^2 + c``; a is not zero.
        scale
            Scale of the input, positive.

        Raises
        ------
        RangeError
            If the scale is not positive, or so fine that the constants leave int64.
        """
        check_scale(scale, "a polynomial")
        q_b = math.floor(b / scale)
        q_c = math.floor(c / (a * scale * scale))
        if max(q_b * q_b, abs(q_c)) >= 2**62:
            raise RangeError(
                f"scale {scale:.3g} is too fine for i-poly",
                why=f"q_b = {q_b}, q_c = {q_c}; their squares and sums must fit int64",
                todo="requantise the input to a coarser scale first",
            )
        return IntegerPolynomial(q_b, q_c, a * scale * scale)


def check_scale(scale: float, what: str) -> None:
    """Refuse a scale that is not a positive finite number."""
    if not (math.isfinite(scale) and scale > 0):
        raise RangeError(
            f"scale {scale} of {what}",
            why="a scale is a positive finite number",
            todo="calibrate again, with data that reaches this tensor",
        )


def i_poly(q: Value, q_b: Value, q_c: Value) -> Value:
    """``(q + q_b)^2 + q_c``.

    Parameters
    ----------
    q
        The input.
    q_b, q_c
        Constants, scalar or per channel.

    Returns
    -------
    Value
        Twice the bits of ``q + q_b``, and one for the sum.
    """
    t = bind(q + q_b)
    return t * t + q_c
