"""`canonical.shift_tokens`: at every token its neighbour at one distance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...dialect.record import Operand
from ..operator import FLOAT, CanonicalOperator


@dataclass(frozen=True)
class ShiftTokens(CanonicalOperator):
    """``y[s] = x[s + distance]``, 0 where the sequence has no such token; padding counts as one.

    Parameters
    ----------
    distance : int
        Positive: the token behind.
    """

    distance: int

    OP = "canonical.shift_tokens"
    OPERANDS = (Operand("x", FLOAT, "b s C"),)
    RESULT = "b s C"
    BY_SEQUENCE = True

    def evaluate(self, x: NDArray[Any]) -> NDArray[Any]:
        length, result = x.shape[1], np.zeros_like(x)
        first, last = max(0, -self.distance), min(length, length - self.distance)
        if first < last:
            result[:, first:last] = x[:, first + self.distance : last + self.distance]
        return result
