"""`canonical.log1p_relu`: the logarithm of one plus what is positive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...dialect.record import Operand
from ..operator import FLOAT, CanonicalOperator


@dataclass(frozen=True)
class Log1pRelu(CanonicalOperator):
    """``log(1 + max(x, 0))``, elementwise: the saturation of SPLADE's term weights.

    Source: SPLADE, https://arxiv.org/abs/2107.05720, equation 1.
    """

    OP = "canonical.log1p_relu"
    OPERANDS = (Operand("x", FLOAT, "... C"),)
    RESULT = "... C"

    def evaluate(self, x: NDArray[Any]) -> NDArray[Any]:
        return np.log1p(np.maximum(x, 0))
