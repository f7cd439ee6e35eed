"""Read-only tables of the C form: arrays, and tables by code point in two stages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .code_points import CODE_POINTS

_WIDTHS = (8, 16, 32)
_PER_LINE = 20
_SHIFTS = range(4, 10)


@dataclass(frozen=True)
class Array:
    """A constant array of unsigned integers, of the narrowest type that holds them."""

    name: str
    values: Sequence[int]

    @property
    def bits(self) -> int:
        """Of an entry."""
        largest = max(self.values, default=0)
        return next(width for width in _WIDTHS if largest < 1 << width)

    @property
    def nbytes(self) -> int:
        """Bytes in flash."""
        return len(self.values) * self.bits // 8

    def __str__(self) -> str:
        lines = (
            ", ".join(map(str, self.values[start : start + _PER_LINE]))
            for start in range(0, len(self.values), _PER_LINE)
        )
        body = ",\n    ".join(lines)
        return (
            f"static const uint{self.bits}_t {self.name}[{max(1, len(self.values))}] = {{\n"
            f"    {body or 0}}};\n"
        )


@dataclass(frozen=True)
class CodePointTable:
    """Numbers by code point, 0 behind the last: equal blocks are stored once."""

    name: str
    shift: int
    index: Array
    blocks: Array

    @classmethod
    def of(cls, name: str, values: Mapping[int, int]) -> CodePointTable:
        """The smallest table of these numbers; code points that are left out have 0."""
        numbers = np.zeros(CODE_POINTS, np.uint32)
        numbers[[*values]] = [*values.values()]
        return cls.smallest(name, numbers)

    @classmethod
    def smallest(cls, name: str, numbers: NDArray[np.uint32]) -> CodePointTable:
        """The smallest table of a number for every code point."""
        return min(
            (cls._cut(name, numbers, shift) for shift in _SHIFTS),
            key=lambda table: table.index.nbytes + table.blocks.nbytes,
        )

    @classmethod
    def _cut(cls, name: str, values: NDArray[np.uint32], shift: int) -> CodePointTable:
        size = 1 << shift
        used = (int(values.nonzero()[0].max(initial=-1)) >> shift) + 1
        rows = [row.tobytes() for row in values[: used * size].reshape(used, size)]
        blocks: dict[bytes, int] = {bytes(4 * size): 0}
        index = [blocks.setdefault(row, len(blocks)) for row in rows]
        flat = np.frombuffer(b"".join(blocks), values.dtype).tolist()
        return cls(name, shift, Array(f"{name}_index", index), Array(f"{name}_blocks", flat))

    @property
    def arrays(self) -> tuple[Array, Array]:
        """Both stages."""
        return self.index, self.blocks

    @property
    def limit(self) -> int:
        """The first code point behind the table."""
        return min(len(self.index.values) << self.shift, CODE_POINTS)


def bits_of(flags: Iterable[bool]) -> list[int]:
    """Flags as bytes, the first in the lowest bit."""
    listed = list(flags)
    return [
        sum(flag << place for place, flag in enumerate(listed[start : start + 8]))
        for start in range(0, len(listed), 8)
    ]


def utf16(text: str) -> Iterator[int]:
    """Units of a text in UTF-16."""
    encoded = text.encode("utf-16-le")
    for start in range(0, len(encoded), 2):
        yield int.from_bytes(encoded[start : start + 2], "little")
