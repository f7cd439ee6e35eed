"""Checks of the attributes that many integer operators have."""

from __future__ import annotations

from ..dialect.record import Dims
from ..spec import nibbles
from .operator import Operator
from .types import dtype_bounds

STORAGE_DTYPES = ("int8", "uint8", "int16", "int32")
"""What a requantisation may store."""
SHORT_DTYPES = ("int8", "uint8", "int16")
"""What 16-bit arithmetic may store."""


def check_bounds(record: Operator, allowed: tuple[str, ...] = STORAGE_DTYPES) -> None:
    """Check `low`, `high` and `dtype` of a requantisation."""
    least, most, dtype = (getattr(record, name) for name in ("low", "high", "dtype"))
    record.choose("dtype", dtype, allowed)
    low, high = dtype_bounds(dtype)
    if not low <= least <= most <= high:
        raise record.refused(
            f"bounds [{least}, {most}] cannot be stored as {dtype}",
            f"{dtype} holds [{low}, {high}], and low must not exceed high",
            "choose a wider dtype or tighter bounds",
        )


def check_attribute(record: Operator, name: str, low: int, high: int, why: str = "") -> None:
    """Refuse an attribute outside of a closed interval."""
    value = getattr(record, name)
    if not low <= value <= high:
        raise record.refused(
            f"{name} {value} is outside [{low}, {high}]",
            why or f"{record.OP} is defined there only",
            "derive it with ibert_tvm.relay_passes.spec, or quantise the model again",
        )


def check_shift(record: Operator, short: bool = False) -> None:
    """Refuse a shift that a product of 64 bits, or one in 16-bit arithmetic, cannot have."""
    why = "it leaves at least one of the 15 bits of a Q15 product"
    limit = (14, why) if short else (62, "the shifted product is an int64")
    check_attribute(record, "shift", 0, *limit)


def check_requantisation(record: Operator, short: bool = False) -> None:
    """Check the attributes of a requantisation, in 16-bit arithmetic or not."""
    check_bounds(record, SHORT_DTYPES if short else STORAGE_DTYPES)
    check_shift(record, short)


def check_half_bytes(record: Operator, dims: Dims, channels: int) -> None:
    """Refuse rows of half bytes, B, and scales of their groups, G, that are not of `channels`."""
    needed = nibbles.bytes_of(channels)
    if (dims["B"], dims["G"]) != needed:
        raise record.refused(
            f"rows of {dims['B']} bytes with {dims['G']} bytes of scales",
            f"{channels} channels take {needed[0]} and {needed[1]}",
            "quantise the model again",
        )
