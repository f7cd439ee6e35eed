"""`canonical.sigmoid`: the logistic function."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...dialect.record import Operand
from ..operator import FLOAT, CanonicalOperator


@dataclass(frozen=True)
class Sigmoid(CanonicalOperator):
    """``1 / (1 + exp(-x))``, elementwise."""

    OP = "canonical.sigmoid"
    OPERANDS = (Operand("x", FLOAT, "... C"),)
    RESULT = "... C"
    ELEMENTWISE = True

    def evaluate(self, x: NDArray[Any]) -> NDArray[Any]:
        return logistic(x)


def logistic(x: NDArray[Any]) -> NDArray[Any]:
    """By the hyperbolic tangent, which overflows nowhere."""
    result = np.tanh(x * np.float32(0.5))
    result += np.float32(1)
    result *= np.float32(0.5)
    return result
