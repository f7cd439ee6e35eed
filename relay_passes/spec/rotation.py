"""Rotary position embeddings: pairs of channels turned by angles of Q15 sines and cosines.

A value of 8 bits is raised by `FRACTION_BITS`, so that each of the two products of a rotation, in
Q15, is off by half of 2^-7 of a step only; their sum still fits 16 bits, because neither the cosine
nor the sine is above 1 in absolute value. It is then requantised as any value of 16 bits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import RangeError
from .values import Value, q15_multiply, saturate_short, short

FRACTION_BITS = 7
"""By which a value of 8 bits is raised: it fits 16 bits then, and so does the sum of two."""
LARGEST = 2**15 - 1
"""Largest entry of a table: the negative of each is one too."""


@dataclass(frozen=True, eq=False)
class RotationTable:
    """Sines and cosines in 16 bits.

    Parameters
    ----------
    entries
        int16, [positions, 2 * angles].
    amplitude
        Real value of 2^15 in them: the factor that the result of `rotate` lacks.
    """

    entries: NDArray[np.int16]
    amplitude: float


def rotation_table(table: NDArray[np.floating]) -> RotationTable:
    """Round a table of cosines and sines, of any amplitude, to 16 bits.

    Parameters
    ----------
    table
        [positions, 2 * angles].

    Raises
    ------
    RangeError
        If an entry is not finite, or all of them are 0.
    """
    wide = np.asarray(table, np.float64)
    largest = float(np.abs(wide).max(initial=0.0))
    if not 0.0 < largest < np.inf:  # also when it is NaN
        raise RangeError(
            f"the largest cosine of a rotation is {largest}",
            why="its table holds cosines and sines, which are not all 0 and finite",
            todo="check the checkpoint, and the settings of its rotary embedding",
        )
    step = largest / LARGEST
    entries = np.floor(wide / step + 0.5).astype(np.int16)
    return RotationTable(entries, step * 2**15)


def rotate(x: Value, partner: Value, cosine: Value, sine: Value, raised: int) -> Value:
    """``x cosine + partner sine``, with `raised` fraction bits.

    Parameters
    ----------
    x, partner
        Channel and the other one of its pair; with `raised` bits more they fit 16 bits, or are
        saturated.
    cosine, sine
        Q15, above -2^15; the sine with its sign for this channel.
    raised
        0 to `FRACTION_BITS`.

    Returns
    -------
    Value
        Short, saturated.
    """
    a, b = unturned(x, raised), unturned(partner, raised)
    return saturate_short(q15_multiply(a, cosine) + q15_multiply(b, sine))


def unturned(x: Value, raised: int) -> Value:
    """A channel that is not rotated, with `raised` fraction bits."""
    return saturate_short(short(x) << raised)
