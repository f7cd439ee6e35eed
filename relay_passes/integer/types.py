"""Types of integer values: a dtype and dimensions, which may be symbolic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_BOUNDS = {
    "int8": (-128, 127),
    "uint8": (0, 255),
    "int16": (-(2**15), 2**15 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
}
DTYPES = tuple(_BOUNDS)
"""Storage types of the dialect."""
NARROW = ("int8", "int16", "int32")
"""Storage types that hold one value of 32 bits at most with its sign."""
MASK = ("int8", "int32", "int64")
INDEX = ("int32", "int64")


LARGEST_INDEX = 2**20
"""Largest position and the like that an attribute may name: no sequence is as long."""


def dtype_bounds(dtype: str) -> tuple[int, int]:
    """Smallest and largest integer of a storage type, for example (-128, 127) for int8."""
    return _BOUNDS[dtype]


@dataclass(frozen=True)
class SymbolicDim:
    """A dimension that is known when a program is specialised: ``symbol + plus``.

    Parameters
    ----------
    symbol : str
        "batch" or "seq_len".
    plus : int
        What is added to it.
    """

    symbol: str
    plus: int = 0

    def __add__(self, number: int) -> SymbolicDim:
        return SymbolicDim(self.symbol, self.plus + number)

    def __str__(self) -> str:
        return f"{self.symbol} + {self.plus}" if self.plus else self.symbol


Dim = int | SymbolicDim


@dataclass(frozen=True)
class TensorType:
    """Type of an integer tensor.

    Parameters
    ----------
    shape : tuple of int or SymbolicDim
        Dimensions.
    dtype : str
        One of `DTYPES`.
    """

    shape: tuple[Dim, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


def static(shape: Sequence[Dim]) -> tuple[int, ...]:
    """Extents of a shape without symbols."""
    assert all(isinstance(dim, int) for dim in shape), shape
    return tuple(dim for dim in shape if isinstance(dim, int))


def is_per_token(shape: Sequence[object]) -> bool:
    """Whether a shape is that of hidden values, [batch, seq_len, channels]."""
    return len(shape) == 3
