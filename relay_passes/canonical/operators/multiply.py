"""`canonical.multiply`: the product of two values, a gate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from ...dialect.record import Operand
from ..operator import FLOAT, CanonicalOperator


@dataclass(frozen=True)
class Multiply(CanonicalOperator):
    """``a b``, entry by entry, of one shape."""

    OP = "canonical.multiply"
    OPERANDS = (Operand("a", FLOAT, "... C"), Operand("b", FLOAT, "... C"))
    RESULT = "... C"
    ELEMENTWISE = True

    def evaluate(self, a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
        return a * b
