"""`canonical.add`: the sum of two values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from ...dialect.record import Operand
from ..operator import FLOAT, CanonicalOperator


@dataclass(frozen=True)
class Add(CanonicalOperator):
    """``a + b``, of one shape."""

    OP = "canonical.add"
    OPERANDS = (Operand("a", FLOAT, "... C"), Operand("b", FLOAT, "... C"))
    RESULT = "... C"

    def evaluate(self, a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
        return a + b
