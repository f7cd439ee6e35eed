"""`integer.operand_part`: the high or the low part of a matrix operand of 16 bits."""

from __future__ import annotations

from dataclasses import dataclass

from ...dialect.record import Operand
from ...spec import parts
from ...spec.values import clamp
from ..checks import check_bounds, choose
from ..domain import Entry
from ..operator import Elementwise
from ..traits import Traits

HIGH, LOW = "high", "low"


@dataclass(frozen=True)
class OperandPart(Elementwise):
    """``clamp(part(x) + zero_point, low, high)``, of `ibert_tvm.relay_passes.spec.parts`.

    `ibert_tvm.relay_passes.passes.split_operands` has products with both parts in the place of one.

    Parameters
    ----------
    part : str
        "high" or "low".
    low, high : int
        Closed interval of the result, within `dtype`.
    dtype : str
        int8 or uint8.
    zero_point : int
        Added to the part.
    """

    part: str
    low: int
    high: int
    dtype: str
    zero_point: int = 0

    OP = "integer.operand_part"
    OPERANDS = (Operand("x", ("int16",), "... C"),)
    RESULT = "... C"
    TRAITS = Traits(elementwise=True, per_token=True, offsets=True)
    STAGE = "part"

    def __post_init__(self) -> None:
        choose("part", self.part, (HIGH, LOW), self.name)
        check_bounds(self, ("int8", "uint8"))

    def entry(self, x: Entry) -> Entry:
        """See the class."""
        of = parts.high_part if self.part == HIGH else parts.low_part
        return clamp(of(x, parts.OPERAND_BITS) + self.zero_point, self.low, self.high)
