"""`canonical.embedding`: rows of a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from ...dialect.record import Operand
from ..operator import FLOAT, INDEX, CanonicalOperator


@dataclass(frozen=True)
class Embedding(CanonicalOperator):
    """Rows of `table` at `ids`."""

    OP = "canonical.embedding"
    OPERANDS = (Operand("table", FLOAT, "V C", section="embeddings"), Operand("ids", INDEX, "b s"))
    RESULT = "b s C"

    def evaluate(self, table: NDArray[Any], ids: NDArray[Any]) -> NDArray[Any]:
        return table[ids]
