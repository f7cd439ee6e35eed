"""Requantisation: to another scale."""

from __future__ import annotations

from ...dialect.record import Operand
from ...spec.fixed_point import requantise_clamped
from ...spec.released import requantise_even
from ...spec.short_requantise import requantise_short
from ..checks import check_attribute, check_bounds, check_requantisation
from ..domain import Entry
from ..operator import Elementwise, Traits
from ..types import DTYPES, NARROW


class Requantise(Elementwise):
    """``clamp(((x m + half) >> shift) + offset + zero_point, low, high)``.

    The optional offset is a zero point of each channel.

    Parameters
    ----------
    shift
        Right shift, 0..62, the same for every channel.
    low, high
        Closed interval of the result, within `dtype`.
    dtype
        int8, uint8, int16 or int32.
    zero_point
        Added after the shift.
    """

    shift: int
    low: int
    high: int
    dtype: str
    zero_point: int = 0

    OPERANDS = (
        Operand("x", DTYPES, "... C"),
        Operand("multiplier", ("int32",), "1|C"),
        Operand("offset", ("int16",), "1|C", optional=True),
    )
    TRAITS = Traits(elementwise=True, per_token=True, rescales=True, offsets=True)
    STAGE = "requantised"

    def __post_init__(self) -> None:
        check_requantisation(self)

    def entry(self, x: Entry, multiplier: Entry, offset: Entry = 0) -> Entry:
        scaled = self.shift, self.zero_point, self.low, self.high
        return requantise_clamped(x, multiplier, *scaled, offset)


class RequantiseShort(Elementwise):
    """``clamp(sat16(q15(sat16(x >> p), m) + o + z 2^shift + half) >> shift, low, high)``.

    The optional offset o is a zero point of each channel, times 2^shift.

    Parameters
    ----------
    shift
        Fraction bits of the Q15 product, 0..14, the same for every channel.
    low, high
        Closed interval of the result, within `dtype`.
    dtype
        int8, uint8 or int16.
    zero_point
        Added before the shift, as ``zero_point 2^shift``.
    """

    shift: int
    low: int
    high: int
    dtype: str
    zero_point: int = 0

    OPERANDS = (
        Operand("x", ("uint8", *NARROW), "... C"),
        Operand("multiplier", ("int16",), "1|C"),
        Operand("pre_shift", ("int32",), "1|C"),
        Operand("offset", ("int16",), "1|C", optional=True),
    )
    TRAITS = Traits(elementwise=True, per_token=True, rescales=True, offsets=True, merges=True)
    STAGE = "requantised"

    def __post_init__(self) -> None:
        check_requantisation(self, short=True)

    def entry(self, x: Entry, multiplier: Entry, pre_shift: Entry, offset: Entry = 0) -> Entry:
        scaled = self.shift, self.zero_point, self.low, self.high
        return requantise_short(x, multiplier, pre_shift, *scaled, offset)


class RequantiseEven(Elementwise):
    """``clamp(round_half_even(x m / 2^e) + zero_point, low, high)``, e per channel.

    Parameters
    ----------
    split
        Bits by which the value is split before the multiplication; see
        `ibert_tvm.relay_passes.spec.released.wide_product`.
    low, high
        Closed interval of the result, within `dtype`.
    dtype
        int8, uint8, int16 or int32.
    zero_point
        Added after the shift.
    """

    split: int
    low: int
    high: int
    dtype: str
    zero_point: int = 0

    OPERANDS = (
        Operand("x", DTYPES, "... C"),
        Operand("multiplier", ("int32",), "1|C"),
        Operand("shift", ("int32",), "1|C"),
    )
    TRAITS = Traits(elementwise=True, per_token=True, rescales=True, offsets=True)
    STAGE = "requantised"

    def __post_init__(self) -> None:
        check_bounds(self)
        check_attribute(self, "split", 0, 31)

    def entry(self, x: Entry, multiplier: Entry, shift: Entry) -> Entry:
        return requantise_even(
            x, multiplier, shift, self.split, self.zero_point, self.low, self.high
        )
