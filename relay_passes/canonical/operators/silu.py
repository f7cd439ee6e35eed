"""`canonical.silu`: SiLU, and with another beta quick-GELU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...dialect.record import Operand
from ..operator import CANONICAL, FLOAT, CanonicalOperator
from .sigmoid import logistic


@dataclass(frozen=True)
class Silu(CanonicalOperator):
    """``x sigmoid(beta x)``, elementwise.

    Parameters
    ----------
    beta : float
        Positive: 1 for SiLU, 1.702 for quick-GELU.
    """

    beta: float = 1.0

    OP = "canonical.silu"
    OPERANDS = (Operand("x", FLOAT, "... C"),)
    RESULT = "... C"
    ELEMENTWISE = True

    def __post_init__(self) -> None:
        if not 0 < self.beta < float("inf"):
            raise CANONICAL.error(
                f"beta is {self.beta}",
                where=self.where,
                why="x sigmoid(beta x) is SiLU of a positive beta",
                todo="use 1 for SiLU, 1.702 for quick-GELU",
            )

    def evaluate(self, x: NDArray[Any]) -> NDArray[Any]:
        result = logistic(x * np.float32(self.beta))
        result *= x
        return result
