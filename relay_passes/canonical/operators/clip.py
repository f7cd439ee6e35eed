"""`canonical.clip`: values kept between two bounds, as by ReLU6."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...dialect.record import Operand
from ..operator import CANONICAL, FLOAT, CanonicalOperator


@dataclass(frozen=True)
class Clip(CanonicalOperator):
    """``min(max(x, low), high)``, elementwise.

    Parameters
    ----------
    low, high : float
        The bounds, low below high; a bound of float32 itself is none.
    """

    low: float
    high: float

    OP = "canonical.clip"
    OPERANDS = (Operand("x", FLOAT, "... C"),)
    RESULT = "... C"

    def __post_init__(self) -> None:
        limit = float(np.finfo(np.float32).max)
        if not -limit <= self.low < self.high <= limit:
            raise CANONICAL.error(
                f"the bounds are {self.low} and {self.high}",
                where=self.where,
                why="the lower one is below the upper one, and both are numbers of float32",
                todo="give 0 and 6 for ReLU6",
            )

    def evaluate(self, x: NDArray[Any]) -> NDArray[Any]:
        return np.clip(x, np.float32(self.low), np.float32(self.high))
