"""`integer.add`: the sum of two values of one scale."""

from __future__ import annotations

from dataclasses import dataclass

from ...dialect.record import Operand
from ..domain import Entry
from ..operator import Elementwise
from ..traits import Traits
from ..types import NARROW


@dataclass(frozen=True)
class Add(Elementwise):
    """``a + b``; both operands already have the result's scale."""

    OP = "integer.add"
    OPERANDS = (Operand("a", NARROW, "... C"), Operand("b", NARROW, "... C"))
    RESULT = "... C"
    dtype = "int32"
    TRAITS = Traits(elementwise=True, per_token=True, sums=True)
    STAGE = "sum"

    def entry(self, a: Entry, b: Entry) -> Entry:
        return a + b
