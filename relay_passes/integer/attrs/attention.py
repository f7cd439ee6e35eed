"""Attributes of attention, and of its operands."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar

from ...errors import LoweringError
from ...spec.exponential import Exponential, PolynomialExponential
from ...spec.released import ReleasedExponential
from ...spec.short_softmax import ShortExponential
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

SOFTMAX_MODES = ("short", "normalised")


@dataclass(frozen=True)
class AttentionAttrs(OpAttrs):
    """Attributes of `integer.attention`.

    Parameters
    ----------
    num_heads : int
        H; the channels of q, k and v are H * D.
    softmax : str
        "short": u8 exponentials times V, divided once per row by their sum, in 16-bit arithmetic.
        "normalised": u8 probabilities of scale 1/256 times V, as published.
    exponential : ShortExponential, PolynomialExponential or ReleasedExponential
        In the DictAttrs: ``exponential="short"``, ``"polynomial"`` or ``"released"``, constants
        prefixed by ``exp_``. The first belongs to "short", the others to "normalised".
    shift, zero_point, low, high, dtype
        Requantisation of the context. "short": its values come with 7 fraction bits in V's scale,
        the int16 multiplier is Q15, ``S_v / 128 / S_out * 2^shift``; dtype int8, uint8 or int16.
        "normalised": 8 fraction bits, a multiplier ``S_v / 256 / S_out * 2^shift`` of 15 bits at
        most; dtype int8, uint8, int16 or int32.
    """

    num_heads: int
    softmax: str
    exponential: Exponential | ShortExponential
    shift: int
    low: int
    high: int
    dtype: str = "int8"
    zero_point: int = 0

    OP: ClassVar[str] = "integer.attention"
    EXPONENTIALS: ClassVar[dict[str, type]] = {
        "short": ShortExponential,
        "polynomial": PolynomialExponential,
        "released": ReleasedExponential,
    }

    def __post_init__(self) -> None:
        choose("softmax", self.softmax, SOFTMAX_MODES, self.name)
        if (self.softmax == "short") != isinstance(self.exponential, ShortExponential):
            raise LoweringError(
                f"a {type(self.exponential).__name__} in {self.softmax} softmax",
                self.name,
                "a ShortExponential belongs to short softmax, the others to normalised softmax",
                "derive both from one preset",
            )
        if self.softmax == "short":
            check_bounds(self, SHORT_DTYPES)
            check_short_shift(self)
            return
        check_output(self)
        if self.exponential.maximum > 65535:
            raise LoweringError(
                f"exponentials up to {self.exponential.maximum} in normalised softmax",
                self.name,
                "this mode stores them in 16 bits",
                "derive the exponential with a smaller maximum",
            )

    def to_dict(self) -> dict[str, Any]:
        """Flat dictionary of ints and strings."""
        kind = next(
            key for key, form in self.EXPONENTIALS.items() if isinstance(self.exponential, form)
        )
        plain = {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if field.name != "exponential"
        }
        return {**plain, "exponential": kind, **flatten("exp", self.exponential)}

    @classmethod
    def from_attrs(cls, attrs: Any) -> AttentionAttrs:
        """Read the attributes of a call."""
        choose("exponential", attrs["exponential"], cls.EXPONENTIALS, attrs["name"])
        plain = {field.name: attrs[field.name] for field in fields(cls)}
        kind = cls.EXPONENTIALS[plain["exponential"]]
        return cls(**{**plain, "exponential": unflatten("exp", kind, attrs)})


@dataclass(frozen=True)
class SplitChannelsAttrs(OpAttrs):
    """Attributes of `integer.split_channels`.

    Parameters
    ----------
    index, parts : int
        Which of how many equal runs of channels.
    """

    index: int
    parts: int

    OP: ClassVar[str] = "integer.split_channels"

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.parts:
            raise LoweringError(
                f"part {self.index} of {self.parts}",
                self.name,
                "parts are counted from 0",
                "build the call in ibert_tvm.relay_passes.passes.merge_projections",
            )
