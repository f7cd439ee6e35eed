"""`canonical.select_token`: one token of every sequence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from ...dialect.record import Operand
from ..operator import FLOAT, CanonicalOperator


@dataclass(frozen=True)
class SelectToken(CanonicalOperator):
    """One token of x.

    Parameters
    ----------
    index : int
        Its place.
    """

    index: int = 0

    OP = "canonical.select_token"
    OPERANDS = (Operand("x", FLOAT, "b s C"),)
    RESULT = "b C"

    def evaluate(self, x: NDArray[Any]) -> NDArray[Any]:
        return x[:, self.index]
