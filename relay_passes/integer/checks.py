"""Checks of the attributes that many integer operators have."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from ..errors import LoweringError
from .operator import INTEGER, Operator
from .types import dtype_bounds

STORAGE_DTYPES = ("int8", "uint8", "int16", "int32")
"""What a requantisation may store."""
SHORT_DTYPES = ("int8", "uint8", "int16")
"""What 16-bit arithmetic may store."""


class Shifted(Protocol):
    """An operator that shifts."""

    @property
    def name(self) -> str:
        """Canonical name of its value."""

    @property
    def shift(self) -> int:
        """Bits."""


class Bounded(Protocol):
    """An operator whose result has bounds."""

    @property
    def name(self) -> str:
        """Canonical name of its value."""

    @property
    def low(self) -> int:
        """Least entry."""

    @property
    def high(self) -> int:
        """Largest entry."""

    @property
    def dtype(self) -> str:
        """Storage type."""


def choose(what: str, value: str, allowed: Collection[str], where: str) -> None:
    """Raise LoweringError where a word is none of the allowed ones."""
    INTEGER.choose(what, value, allowed, where)


def check_bounds(record: Bounded, allowed: tuple[str, ...] = STORAGE_DTYPES) -> None:
    """Raise LoweringError where the bounds of a result do not fit its type."""
    choose("dtype", record.dtype, allowed, record.name)
    low, high = dtype_bounds(record.dtype)
    if not low <= record.low <= record.high <= high:
        raise LoweringError(
            f"bounds [{record.low}, {record.high}] cannot be stored as {record.dtype}",
            record.name,
            f"{record.dtype} holds [{low}, {high}], and low must not exceed high",
            "choose a wider dtype or tighter bounds",
        )


def check_attribute(record: Operator, name: str, low: int, high: int) -> None:
    """Raise LoweringError where an attribute is not in [low, high]."""
    value = getattr(record, name)
    if not low <= value <= high:
        raise LoweringError(
            f"{name} {value} is outside [{low}, {high}]",
            record.name,
            f"{record.OP} is defined there only",
            "derive it with ibert_tvm.relay_passes.spec, or quantise the model again",
        )


def check_short_shift(record: Shifted) -> None:
    """Raise LoweringError where 16-bit arithmetic has no such shift."""
    if not 0 <= record.shift <= 14:
        raise LoweringError(
            f"shift {record.shift} is outside [0, 14]",
            record.name,
            "it leaves at least one of the 15 bits of a Q15 product",
            "derive it with ibert_tvm.relay_passes.spec.short_requantise",
        )


def check_shift(record: Shifted) -> None:
    """Raise LoweringError where 64-bit arithmetic has no such shift."""
    if not 0 <= record.shift <= 62:
        raise LoweringError(
            f"shift {record.shift} is outside [0, 62]",
            record.name,
            "the shifted product is an int64",
            "derive multiplier and shift with ibert_tvm.relay_passes.spec.fixed_point",
        )
