"""`integer.requantise_even`: to another scale as the released I-BERT code does it."""

from __future__ import annotations

from dataclasses import dataclass

from ...dialect.record import Operand
from ...spec.released import requantise_even
from ..checks import check_attribute, check_bounds
from ..domain import Entry
from ..operator import Elementwise
from ..traits import Traits
from ..types import DTYPES


@dataclass(frozen=True)
class RequantiseEven(Elementwise):
    """``clamp(round_half_even(x m / 2^e) + zero_point, low, high)``, e per channel.

    Parameters
    ----------
    split : int
        Bits by which the value is split before the multiplication; see
        `ibert_tvm.relay_passes.spec.released.wide_product`.
    low, high : int
        Closed interval of the result, within `dtype`.
    dtype : str
        int8, uint8, int16 or int32.
    zero_point : int
        Added after the shift.
    """

    split: int
    low: int
    high: int
    dtype: str
    zero_point: int = 0

    OP = "integer.requantise_even"
    OPERANDS = (
        Operand("x", DTYPES, "... C"),
        Operand("multiplier", ("int32",), "1|C"),
        Operand("shift", ("int32",), "1|C"),
    )
    RESULT = "... C"
    TRAITS = Traits(elementwise=True, per_token=True, rescales=True, offsets=True)
    STAGE = "requantised"

    def __post_init__(self) -> None:
        check_bounds(self)
        check_attribute(self, "split", 0, 31)

    def entry(self, x: Entry, multiplier: Entry, shift: Entry) -> Entry:
        return requantise_even(
            x, multiplier, shift, self.split, self.zero_point, self.low, self.high
        )
