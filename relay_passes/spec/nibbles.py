"""Rows of a table or a matrix in half bytes, by groups: what each entry of them stands for.

An entry is ``(scale of its group, 1..16) * (half byte - 8)``, which has 8 bits; in a table, times
``rows[v]``. In a group of 32 entries byte k holds entry k in its lower half and entry k + 16 in its
upper half, so that a vector of bytes gives two vectors of neighbours. Scales of groups are two to a
byte, the first in the lower half.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..dialect.arrays import Integers
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


def entry_of(byte: Value, upper: Value, scales: Value, odd: Value) -> Value:
    """An entry of 8 bits: of the byte that has it, and the byte that has its group's scale."""
    return (half_byte(byte, upper) + LEAST) * (half_byte(scales, odd) + 1)


def bytes_of(channels: int) -> tuple[int, int]:
    """Bytes of a row and of the scales of its groups."""
    groups = -(-channels // GROUP)
    return groups * HALF, -(-groups // 2)


def pack(
    entries: NDArray[np.int8], scales: NDArray[np.int64]
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Pack entries -8..7 [V, groups, 32] and scales 1..16 [V, groups]."""
    halves = (entries - LEAST).astype(np.uint8)
    table = halves[..., :HALF] | halves[..., HALF:] << _BITS
    even = np.pad(scales - 1, ((0, 0), (0, scales.shape[1] % 2))).astype(np.uint8)
    packed = even[:, ::2] | even[:, 1::2] << _BITS
    return table.reshape(len(table), -1).astype(np.uint8), packed.astype(np.uint8)


def unpack(table: Integers, scales: Integers, channels: int) -> NDArray[np.int8]:
    """The entries of 8 bits [V, channels] that packed rows stand for."""
    channel = np.arange(channels)
    group, within = channel // GROUP, channel % GROUP
    entries = entry_of(
        table[:, group * HALF + within % HALF].astype(np.int16),
        within // HALF,
        scales[:, group // 2].astype(np.int16),
        group % 2,
    )
    return np.asarray(entries).astype(np.int8)


def unpack_scales(scales: Integers, channels: int) -> NDArray[np.int64]:
    """The scales 1..16 of groups, [V, groups]."""
    group = np.arange(-(-channels // GROUP))
    packed = np.asarray(scales[:, group // 2]).astype(np.int64)
    return np.asarray(half_byte(packed, group % 2) + 1)


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
        return cls(*pack(entries, scales), rows.astype(np.uint8))
