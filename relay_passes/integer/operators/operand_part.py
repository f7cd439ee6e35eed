"""`integer.operand_part`: the high or the low part of a matrix operand of 16 bits."""

from __future__ import annotations

from dataclasses import dataclass

from ...dialect.record import Operand
from ...spec import parts
from ..checks import choose
from ..domain import Entry
from ..operator import Elementwise
from ..traits import Traits


@dataclass(frozen=True)
class OperandPart(Elementwise):
    """``part(x) + zero_point``, of `ibert_tvm.relay_passes.spec.parts`.

    `ibert_tvm.relay_passes.passes.split_operands` has products with both parts in the place of one.

    Parameters
    ----------
    part : str
        "high" or "low".
    dtype : str
        int8 or uint8; an x whose parts do not fit is refused.
    zero_point : int
        Added to the part.
    """

    part: str
    dtype: str
    zero_point: int = 0

    OP = "integer.operand_part"
    OPERANDS = (Operand("x", ("int16",), "... C"),)
    RESULT = "... C"
    TRAITS = Traits(elementwise=True, per_token=True, offsets=True)
    STAGE = "part"

    def __post_init__(self) -> None:
        choose("part", self.part, ("high", "low"), self.name)
        choose("dtype", self.dtype, ("int8", "uint8"), self.name)

    def entry(self, x: Entry) -> Entry:
        of = parts.high_part if self.part == "high" else parts.low_part
        return of(x, parts.OPERAND_BITS) + self.zero_point
