"""`integer.add_short`: the sum of two values of one scale, in 16 bits."""

from __future__ import annotations

from dataclasses import dataclass

from ...dialect.record import Operand
from ...spec.short_requantise import saturating_sum
from ..checks import check_bounds
from ..domain import Entry
from ..operator import Elementwise
from ..traits import Traits
from ..types import NARROW


@dataclass(frozen=True)
class AddShort(Elementwise):
    """``clamp(a + b, low, high)``; both operands already have the result's scale.

    Parameters
    ----------
    low, high : int
        Closed interval of the sum, within int16.
    """

    low: int
    high: int

    OP = "integer.add_short"
    OPERANDS = (Operand("a", NARROW, "... C"), Operand("b", NARROW, "... C"))
    RESULT = "... C"
    dtype = "int16"
    TRAITS = Traits(elementwise=True, per_token=True, sums=True)
    STAGE = "sum"

    def __post_init__(self) -> None:
        check_bounds(self, ("int16",))

    def entry(self, a: Entry, b: Entry) -> Entry:
        return saturating_sum(a, b, self.low, self.high)
