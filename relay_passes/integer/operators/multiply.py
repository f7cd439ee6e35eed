"""`integer.multiply`: the product of two values of 16 bits."""

from __future__ import annotations

from dataclasses import dataclass

from ...dialect.record import Operand
from ..domain import Entry
from ..operator import Elementwise
from ..traits import Traits

_SHORT = ("int8", "int16")


@dataclass(frozen=True)
class Multiply(Elementwise):
    """``a b``, exactly; its scale is the product of theirs."""

    OP = "integer.multiply"
    OPERANDS = (Operand("a", _SHORT, "... C"), Operand("b", _SHORT, "... C"))
    RESULT = "... C"
    dtype = "int32"
    TRAITS = Traits(elementwise=True, per_token=True)
    STAGE = "product"

    def entry(self, a: Entry, b: Entry) -> Entry:
        """See the class."""
        return a * b
