"""`integer.add_positions`: a table of rows added to the tokens of every sequence."""

from __future__ import annotations

from dataclasses import dataclass

from ...dialect.record import Operand
from ..domain import Domain, Tensor
from ..operator import Operator
from ..traits import Traits
from ..types import NARROW


@dataclass(frozen=True)
class AddPositions(Operator):
    """``x + table``: row s to token s of every sequence; both at one scale, s static."""

    OP = "integer.add_positions"
    OPERANDS = (Operand("x", NARROW, "b s C"), Operand("table", ("int32",), "s C"))
    RESULT = "b s C"
    dtype = "int32"
    TRAITS = Traits(elementwise=True)

    def body(self, domain: Domain, **operands: Tensor) -> Tensor:
        x, table = operands["x"], operands["table"]
        length = table.shape[0]
        return domain.define(
            "sum",
            x.shape,
            lambda row, channel: x[row, channel] + table[row % length, channel],
            "int32",
        )
