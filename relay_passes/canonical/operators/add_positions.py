"""`canonical.add_positions`: a table added to tokens by their place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from ...dialect.record import Operand
from ..operator import FLOAT, CanonicalOperator


@dataclass(frozen=True)
class AddPositions(CanonicalOperator):
    """Add row s of `table` to token s of x, whose length is static."""

    OP = "canonical.add_positions"
    OPERANDS = (Operand("x", FLOAT, "b S C"), Operand("table", FLOAT, "S C"))
    RESULT = "b S C"

    def evaluate(self, x: NDArray[Any], table: NDArray[Any]) -> NDArray[Any]:
        return x + table
