"""Rows of a table in half bytes, by groups: what each entry of such a table stands for.

An entry is ``rows[v] * (scale of its group, 1..16) * (half byte - 8)``. In a group of 32 entries
byte k holds entry k in its lower half and entry k + 16 in its upper half, so that a vector of bytes
gives two vectors of neighbours. Scales of groups are two to a byte, the first in the lower half.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .values import Value

GROUP, HALF = 32, 16
"""Entries of a group, and the bytes that they take."""
LEAST, MOST = -8, 7
"""Of what a half byte stands for."""
LARGEST_SCALE, LARGEST_ROW = 16, 255
LARGEST = -LEAST * LARGEST_SCALE * LARGEST_ROW
"""Magnitude of an entry."""
_BITS, _MASK = 4, 15


def half_byte(byte: Value, upper: Value) -> Value:
    """The lower half of a byte, or where `upper` is 1 and not 0 its upper half."""
    return (byte >> (upper * _BITS)) & _MASK


def entry_of(byte: Value, upper: Value, scales: Value, odd: Value, row: Value) -> Value:
    """An entry: of the byte that has it, the byte that has its group's scale, and its row's."""
    return (half_byte(byte, upper) + LEAST) * (half_byte(scales, odd) + 1) * row


def bytes_of(channels: int) -> tuple[int, int]:
    """Bytes of a row and of the scales of its groups."""
    groups = -(-channels // GROUP)
    return groups * HALF, -(-groups // 2)


@dataclass(frozen=True, eq=False)
class NibbleRows:
    """A table.

    Attributes
    ----------
    table
        uint8 [V, H].
    scales
        uint8 [V, G].
    rows
        uint8 [V].
    """

    table: NDArray[np.uint8]
    scales: NDArray[np.uint8]
    rows: NDArray[np.uint8]

    @classmethod
    def pack(
        cls, entries: NDArray[np.int8], scales: NDArray[np.int64], rows: NDArray[np.int64]
    ) -> NibbleRows:
        """Pack entries -8..7 [V, groups, 32], scales 1..16 [V, groups] and rows 0..255 [V]."""
        halves = (entries - LEAST).astype(np.uint8)
        table = halves[..., :HALF] | halves[..., HALF:] << _BITS
        even = np.pad(scales - 1, ((0, 0), (0, scales.shape[1] % 2))).astype(np.uint8)
        return cls(
            table.reshape(len(rows), -1).astype(np.uint8),
            (even[:, ::2] | even[:, 1::2] << _BITS).astype(np.uint8),
            rows.astype(np.uint8),
        )
