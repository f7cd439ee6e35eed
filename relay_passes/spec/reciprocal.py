"""Exact division by a constant, as a multiplication and a shift."""

from __future__ import annotations

from ..errors import RangeError


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
