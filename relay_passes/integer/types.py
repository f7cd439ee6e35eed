"""Types of integer values: what their dtypes hold."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ..dialect.types import Dim as Dim
from ..dialect.types import SymbolicDim as SymbolicDim
from ..dialect.types import TensorType as TensorType
from ..dialect.types import static as static

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


def is_per_token(shape: Sequence[object]) -> bool:
    """Whether a shape is that of hidden values, [batch, seq_len, channels]."""
    return len(shape) == 3


def rows_of(shape: tuple[int, ...], rows_per_token: int = 1) -> tuple[int, int]:
    """Rows and their channels as bodies and kernels see a value, [..., channels].

    Parameters
    ----------
    shape
        Static.
    rows_per_token
        Runs of channels, a divisor of them, that are rows of their own.
    """
    *leading, channels = shape
    return prod(leading) * rows_per_token, channels // rows_per_token
