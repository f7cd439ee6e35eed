"""Types of values: a dtype and dimensions, which may be symbolic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class SymbolicDim:
    """A dimension that is known when a program is specialised: ``symbol + plus``.

    Parameters
    ----------
    symbol
        "batch" or "seq_len".
    plus
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
    """Type of a tensor.

    Parameters
    ----------
    shape : tuple of int or SymbolicDim
        Dimensions.
    dtype
        Such as ``"int8"``.
    """

    shape: tuple[Dim, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


def static(shape: Sequence[Dim]) -> tuple[int, ...]:
    """Extents of a shape without symbols."""
    assert all(isinstance(dim, int) for dim in shape), shape
    return tuple(dim for dim in shape if isinstance(dim, int))
