"""`integer.add_row`: one number per channel added to every token."""

from __future__ import annotations

from dataclasses import dataclass

from ...dialect.record import Operand
from ..domain import Entry
from ..operator import Elementwise
from ..traits import Traits
from ..types import NARROW


@dataclass(frozen=True)
class AddRow(Elementwise):
    """``x + row``, both at one scale."""

    OP = "integer.add_row"
    OPERANDS = (Operand("x", NARROW, "... C"), Operand("row", ("int32",), "1|C"))
    RESULT = "... C"
    dtype = "int32"
    TRAITS = Traits(elementwise=True, per_token=True)
    STAGE = "sum"

    def entry(self, x: Entry, row: Entry) -> Entry:
        return x + row
