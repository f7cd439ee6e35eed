"""`integer.requantise`: to another scale, by a dyadic multiplier of 31 bits."""

from __future__ import annotations

from dataclasses import dataclass

from ...dialect.record import Operand
from ...spec.fixed_point import requantise_clamped
from ..checks import check_bounds, check_shift
from ..domain import Entry
from ..operator import Elementwise
from ..traits import Traits
from ..types import DTYPES


@dataclass(frozen=True)
class Requantise(Elementwise):
    """``clamp(((x m + half) >> shift) + offset + zero_point, low, high)``.

    The optional offset is a zero point of each channel.

    Parameters
    ----------
    shift : int
        Right shift, 0..62, the same for every channel.
    low, high : int
        Closed interval of the result, within `dtype`.
    dtype : str
        int8, uint8, int16 or int32.
    zero_point : int
        Added after the shift.
    """

    shift: int
    low: int
    high: int
    dtype: str
    zero_point: int = 0

    OP = "integer.requantise"
    OPERANDS = (
        Operand("x", DTYPES, "... C"),
        Operand("multiplier", ("int32",), "1|C"),
        Operand("offset", ("int16",), "1|C", optional=True),
    )
    RESULT = "... C"
    TRAITS = Traits(elementwise=True, per_token=True, rescales=True, offsets=True)
    STAGE = "requantised"

    def __post_init__(self) -> None:
        check_bounds(self)
        check_shift(self)

    def entry(self, x: Entry, multiplier: Entry, offset: Entry = 0) -> Entry:
        scaled = self.shift, self.zero_point, self.low, self.high
        return requantise_clamped(x, multiplier, *scaled, offset)
