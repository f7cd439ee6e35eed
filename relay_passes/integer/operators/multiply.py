"""`integer.multiply`: the product of two values of 16 bits."""

from __future__ import annotations

from dataclasses import dataclass

from ...dialect.record import Operand
from ...spec.values import saturate_short
from ..domain import Entry
from ..operator import Elementwise
from ..traits import Traits
from ..types import NARROW


@dataclass(frozen=True)
class Multiply(Elementwise):
    """``a b`` of operands that are cut at 16 bits; its scale is the product of theirs."""

    OP = "integer.multiply"
    OPERANDS = (Operand("a", NARROW, "... C"), Operand("b", NARROW, "... C"))
    RESULT = "... C"
    dtype = "int32"
    TRAITS = Traits(elementwise=True, per_token=True)
    STAGE = "product"

    def entry(self, a: Entry, b: Entry) -> Entry:
        return saturate_short(a) * saturate_short(b)
