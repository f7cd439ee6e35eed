"""Attributes of operators that work on single numbers, and of the matrix product."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ...spec.exponential import BinaryExponential
from ...spec.gelu import AccurateGelu
from .base import (
    SHORT_DTYPES,
    OpAttrs,
    check_bounds,
    check_output,
    check_short_shift,
    choose,
    flatten,
    unflatten,
)

GELU_FORMS = ("accurate", "paper")


@dataclass(frozen=True)
class LinearAttrs(OpAttrs):
    """Attributes of `integer.linear`: only the name."""

    OP: ClassVar[str] = "integer.linear"


@dataclass(frozen=True)
class AddAttrs(OpAttrs):
    """Attributes of `integer.add`: only the name."""

    OP: ClassVar[str] = "integer.add"


@dataclass(frozen=True)
class AddShortAttrs(OpAttrs):
    """Attributes of `integer.add_short`.

    Parameters
    ----------
    low, high : int
        Closed interval of the sum, within int16.
    """

    low: int
    high: int

    OP: ClassVar[str] = "integer.add_short"

    @property
    def dtype(self) -> str:
        """Type of the sum."""
        return "int16"

    def __post_init__(self) -> None:
        check_bounds(self, ("int16",))


@dataclass(frozen=True)
class ReluAttrs(OpAttrs):
    """Attributes of `integer.relu`: only the name."""

    OP: ClassVar[str] = "integer.relu"


@dataclass(frozen=True)
class RequantiseAttrs(OpAttrs):
    """Attributes of `integer.requantise`.

    Parameters
    ----------
    shift : int
        Right shift, 0..62, the same for every channel.
    zero_point : int
        Added after the shift.
    low, high : int
        Closed interval of the result, within `dtype`.
    dtype : str
        int8, uint8, int16 or int32.
    """

    shift: int
    low: int
    high: int
    dtype: str
    zero_point: int = 0

    OP: ClassVar[str] = "integer.requantise"

    def __post_init__(self) -> None:
        check_output(self)


@dataclass(frozen=True)
class RequantiseShortAttrs(OpAttrs):
    """Attributes of `integer.requantise_short`.

    Parameters
    ----------
    shift : int
        Fraction bits of the Q15 product, 0..14, the same for every channel.
    zero_point : int
        Added before the shift, as ``zero_point 2^shift``.
    low, high : int
        Closed interval of the result, within `dtype`.
    dtype : str
        int8, uint8 or int16.
    """

    shift: int
    low: int
    high: int
    dtype: str
    zero_point: int = 0

    OP: ClassVar[str] = "integer.requantise_short"

    def __post_init__(self) -> None:
        check_bounds(self, SHORT_DTYPES)
        check_short_shift(self)


@dataclass(frozen=True)
class RequantiseEvenAttrs(OpAttrs):
    """Attributes of `integer.requantise_even`.

    Parameters
    ----------
    split : int
        Bits by which the value is split before the multiplication; see
        `ibert_tvm.relay_passes.spec.released.wide_product`.
    zero_point : int
        Added after the shift.
    low, high : int
        Closed interval of the result, within `dtype`.
    dtype : str
        int8, uint8, int16 or int32.
    """

    split: int
    low: int
    high: int
    dtype: str
    zero_point: int = 0

    OP: ClassVar[str] = "integer.requantise_even"

    def __post_init__(self) -> None:
        check_bounds(self)


@dataclass(frozen=True)
class GeluAttrs(OpAttrs):
    """Attributes of `integer.gelu`.

    Parameters
    ----------
    constants : AccurateGelu or None
        In the DictAttrs: ``form="accurate"`` and the constants prefixed by ``gelu_``. None is
        ``form="paper"``, whose constants are all operands.
    """

    constants: AccurateGelu | None

    OP: ClassVar[str] = "integer.gelu"

    @property
    def form(self) -> str:
        """Name of the form, "accurate" or "paper"."""
        return "paper" if self.constants is None else "accurate"

    def to_dict(self) -> dict[str, Any]:
        """Flat dictionary of ints and strings."""
        constants = {} if self.constants is None else flatten("gelu", self.constants)
        return {"name": self.name, "form": self.form, **constants}

    @classmethod
    def from_attrs(cls, attrs: Any) -> GeluAttrs:
        """Read the attributes of a call."""
        choose("form of GELU", attrs["form"], GELU_FORMS, attrs["name"])
        if attrs["form"] == "paper":
            return cls(attrs["name"], None)
        return cls(attrs["name"], unflatten("gelu", AccurateGelu, attrs))


@dataclass(frozen=True)
class TanhAttrs(OpAttrs):
    """Attributes of `integer.tanh`.

    Parameters
    ----------
    exponential : BinaryExponential
        Constants of 2^(-2 |x| log2 e), from ``BinaryExponential.for_tanh(scale)``; prefixed by
        ``exp_`` in the DictAttrs.
    fraction_bits : int
        The result's scale is 2^-fraction_bits, its bound 2^fraction_bits - 1.
    """

    exponential: BinaryExponential
    fraction_bits: int = 15

    OP: ClassVar[str] = "integer.tanh"

    def to_dict(self) -> dict[str, Any]:
        """Flat dictionary of ints and strings."""
        return {
            "name": self.name,
            "fraction_bits": self.fraction_bits,
            **flatten("exp", self.exponential),
        }

    @classmethod
    def from_attrs(cls, attrs: Any) -> TanhAttrs:
        """Read the attributes of a call."""
        exponential = unflatten("exp", BinaryExponential, attrs)
        return cls(attrs["name"], exponential, int(attrs["fraction_bits"]))
