"""`canonical.add_row`: one number per channel added to every token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from ...dialect.record import Operand
from ..operator import FLOAT, CanonicalOperator


@dataclass(frozen=True)
class AddRow(CanonicalOperator):
    """``x + row`` by channel, where no bias before it takes the row over."""

    OP = "canonical.add_row"
    OPERANDS = (Operand("x", FLOAT, "... C"), Operand("row", FLOAT, "C"))
    RESULT = "... C"

    def evaluate(self, x: NDArray[Any], row: NDArray[Any]) -> NDArray[Any]:
        return x + row
