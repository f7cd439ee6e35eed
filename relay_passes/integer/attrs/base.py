"""What the attributes of all operators share: conversion both ways, and checks of what they say."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypeVar

from tvm import ir, relax

from ...errors import LoweringError

_Self = TypeVar("_Self", bound="OpAttrs")

STORAGE_DTYPES = ("int8", "uint8", "int16", "int32")
"""What `integer.requantise`, `integer.layer_norm` may store."""
SHORT_DTYPES = ("int8", "uint8", "int16")
"""What 16-bit arithmetic may store."""

_BOUNDS = {
    "int8": (-128, 127),
    "uint8": (0, 255),
    "int16": (-(2**15), 2**15 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
}


def dtype_bounds(dtype: str) -> tuple[int, int]:
    """Smallest and largest integer of a storage type, for example (-128, 127) for int8."""
    return _BOUNDS[dtype]


def flatten(prefix: str, constants: Any) -> dict[str, int]:
    """Attributes for the constants of an approximation: the fields of a dataclass, prefixed."""
    return {f"{prefix}_{field.name}": getattr(constants, field.name) for field in fields(constants)}


def unflatten(prefix: str, cls: type, attrs: Any) -> Any:
    """Read the constants that `flatten` wrote; `cls` is their dataclass."""
    return cls(**{field.name: int(attrs[f"{prefix}_{field.name}"]) for field in fields(cls)})


def choose(what: str, value: str, allowed: Any, where: str) -> None:
    """Raise LoweringError where a word is none of the allowed ones."""
    if value not in allowed:
        raise LoweringError(
            f"unknown {what} {value!r}",
            where,
            "the integer dialect does not define it",
            f"use one of: {', '.join(allowed)}",
        )


def check_output(attrs: Any) -> None:
    """Raise LoweringError where an operator cannot store what it says, or shift so far."""
    check_bounds(attrs)
    check_shift(attrs)


def check_bounds(attrs: Any, allowed: tuple[str, ...] = STORAGE_DTYPES) -> None:
    """Raise LoweringError where the bounds of a result do not fit its type."""
    choose("dtype", attrs.dtype, allowed, attrs.name)
    low, high = dtype_bounds(attrs.dtype)
    if not low <= attrs.low <= attrs.high <= high:
        raise LoweringError(
            f"bounds [{attrs.low}, {attrs.high}] cannot be stored as {attrs.dtype}",
            attrs.name,
            f"{attrs.dtype} holds [{low}, {high}], and low must not exceed high",
            "choose a wider dtype or tighter bounds",
        )


def check_short_shift(attrs: Any) -> None:
    """Raise LoweringError where 16-bit arithmetic has no such shift."""
    if not 0 <= attrs.shift <= 14:
        raise LoweringError(
            f"shift {attrs.shift} is outside [0, 14]",
            attrs.name,
            "it leaves at least one of the 15 bits of a Q15 product",
            "derive it with ibert_tvm.relay_passes.spec.short_requantise",
        )


def check_shift(attrs: Any) -> None:
    """Raise LoweringError where 64-bit arithmetic has no such shift."""
    if not 0 <= attrs.shift <= 62:
        raise LoweringError(
            f"shift {attrs.shift} is outside [0, 62]",
            attrs.name,
            "the shifted product is an int64",
            "derive multiplier and shift with ibert_tvm.relay_passes.spec.fixed_point",
        )


@dataclass(frozen=True)
class OpAttrs:
    """What every operator carries.

    Parameters
    ----------
    name : str
        Canonical name of the value the operator produces (with a suffix where one canonical
        operator becomes several), unique in the module.
    """

    name: str

    OP: ClassVar[str] = ""

    def to_dict(self) -> dict[str, Any]:
        """Flat dictionary of ints and strings."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def to_attrs(self) -> ir.Attrs:
        """Return the attributes as a TVM DictAttrs."""
        return ir.make_node("ir.DictAttrs", **self.to_dict())

    @classmethod
    def from_attrs(cls: type[_Self], attrs: Any) -> _Self:
        """Read the attributes of a call; `attrs` is anything that is indexed by names."""
        return cls(**{field.name: attrs[field.name] for field in fields(cls)})

    @classmethod
    def from_call(cls: type[_Self], call: relax.Call) -> _Self:
        """Read the attributes of a Relax call."""
        return cls.from_attrs(call.attrs)
