"""Attributes of the normalisations of rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ...spec.layer_norm import LayerNormConstants
from ...spec.released import ReleasedLayerNorm
from ...spec.short_layer_norm import ShortLayerNorm
from .base import SHORT_DTYPES, OpAttrs, check_bounds, check_output, check_shift, flatten, unflatten


@dataclass(frozen=True)
class LayerNormAttrs(OpAttrs):
    """Attributes of `integer.layer_norm`.

    Parameters
    ----------
    constants : LayerNormConstants
        input_limit, epsilon, reciprocal_bits, normalised_bits; prefixed by ``norm_`` in the
        DictAttrs.
    shift : int
        Right shift of ``n * gain + offset``.
    low, high : int
        Closed interval of the result, within `dtype`.
    dtype : str
        int8, uint8, int16 or int32.
    """

    constants: LayerNormConstants
    shift: int
    low: int
    high: int
    dtype: str

    OP: ClassVar[str] = "integer.layer_norm"

    def __post_init__(self) -> None:
        check_output(self)

    def to_dict(self) -> dict[str, Any]:
        """Flat dictionary of ints and strings."""
        plain = {name: getattr(self, name) for name in ("name", "shift", "low", "high", "dtype")}
        return {**plain, **flatten("norm", self.constants)}

    @classmethod
    def from_attrs(cls, attrs: Any) -> LayerNormAttrs:
        """Read the attributes of a call."""
        constants = unflatten("norm", LayerNormConstants, attrs)
        return cls(
            attrs["name"], constants, attrs["shift"], attrs["low"], attrs["high"], attrs["dtype"]
        )


@dataclass(frozen=True)
class ShortLayerNormAttrs(OpAttrs):
    """Attributes of `integer.layer_norm_short`.

    Parameters
    ----------
    constants : ShortLayerNorm
        Prefixed by ``norm_`` in the DictAttrs.
    shift : int
        Right shift of ``n * gain + offset``.
    low, high : int
        Closed interval of the result, within `dtype`.
    dtype : str
        int8, uint8 or int16.
    """

    constants: ShortLayerNorm
    shift: int
    low: int
    high: int
    dtype: str

    OP: ClassVar[str] = "integer.layer_norm_short"

    def __post_init__(self) -> None:
        check_bounds(self, SHORT_DTYPES)
        check_shift(self)

    def to_dict(self) -> dict[str, Any]:
        """Flat dictionary of ints and strings."""
        plain = {name: getattr(self, name) for name in ("name", "shift", "low", "high", "dtype")}
        return {**plain, **flatten("norm", self.constants)}

    @classmethod
    def from_attrs(cls, attrs: Any) -> ShortLayerNormAttrs:
        """Read the attributes of a call."""
        constants = unflatten("norm", ShortLayerNorm, attrs)
        return cls(
            attrs["name"], constants, attrs["shift"], attrs["low"], attrs["high"], attrs["dtype"]
        )


@dataclass(frozen=True)
class ReleasedLayerNormAttrs(OpAttrs):
    """Attributes of `integer.released_layer_norm`.

    Parameters
    ----------
    constants : ReleasedLayerNorm
        Prefixed by ``norm_`` in the DictAttrs.
    """

    constants: ReleasedLayerNorm

    OP: ClassVar[str] = "integer.released_layer_norm"

    def to_dict(self) -> dict[str, Any]:
        """Flat dictionary of ints and strings."""
        return {"name": self.name, **flatten("norm", self.constants)}

    @classmethod
    def from_attrs(cls, attrs: Any) -> ReleasedLayerNormAttrs:
        """Read the attributes of a call."""
        return cls(attrs["name"], unflatten("norm", ReleasedLayerNorm, attrs))
