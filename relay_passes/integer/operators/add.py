"""`integer.add`: the sum of two values of one scale."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...dialect.record import Operand
from ..domain import Entry
from ..operator import Elementwise
from ..traits import Traits
from ..types import NARROW, TensorType


@dataclass(frozen=True)
class Add(Elementwise):
    """``a + b``; both operands already have the result's scale."""

    OP = "integer.add"
    OPERANDS = (Operand("a", NARROW, "... C"), Operand("b", NARROW, "... C"))
    RESULT = "... C"
    TRAITS = Traits(elementwise=True, per_token=True, sums=True)
    STAGE = "sum"

    def result_dtype(self, types: Mapping[str, TensorType]) -> str:
        """int32."""
        return "int32"

    def entry(self, a: Entry, b: Entry) -> Entry:
        """See the class."""
        return a + b
