"""`canonical.tanh`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...dialect.record import Operand
from ..operator import FLOAT, CanonicalOperator


@dataclass(frozen=True)
class Tanh(CanonicalOperator):
    """Hyperbolic tangent, elementwise."""

    OP = "canonical.tanh"
    OPERANDS = (Operand("x", FLOAT, "... C"),)
    RESULT = "... C"
    ELEMENTWISE = True

    def evaluate(self, x: NDArray[Any]) -> NDArray[Any]:
        return np.tanh(x)
