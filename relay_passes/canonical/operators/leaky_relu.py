"""`canonical.leaky_relu`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...dialect.record import Operand
from ..operator import CANONICAL, FLOAT, CanonicalOperator


@dataclass(frozen=True)
class LeakyRelu(CanonicalOperator):
    """``max(x, slope x)``, elementwise.

    Parameters
    ----------
    slope : float
        Between 0 and 1.
    """

    slope: float

    OP = "canonical.leaky_relu"
    OPERANDS = (Operand("x", FLOAT, "... C"),)
    RESULT = "... C"

    def __post_init__(self) -> None:
        if not 0 < self.slope < 1:
            raise CANONICAL.error(
                f"slope is {self.slope}",
                where=self.where,
                why="max(x, slope x) is a leaky ReLU of a slope between 0 and 1",
                todo="use relu for 0",
            )

    def evaluate(self, x: NDArray[Any]) -> NDArray[Any]:
        return np.maximum(x, x * np.float32(self.slope))
