"""`canonical.rms_norm`: RMSNorm over the last axis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...dialect.record import Operand
from ..operator import FLOAT, CanonicalOperator


@dataclass(frozen=True)
class RmsNorm(CanonicalOperator):
    """``x / sqrt(mean of x^2 + epsilon) gamma`` of every row of channels.

    Parameters
    ----------
    epsilon : float
    """

    epsilon: float

    OP = "canonical.rms_norm"
    OPERANDS = (Operand("x", FLOAT, "... C"), Operand("gamma", FLOAT, "C"))
    RESULT = "... C"

    def evaluate(self, x: NDArray[Any], gamma: NDArray[Any]) -> NDArray[Any]:
        """See the class."""
        squares = np.einsum("...c,...c->...", x, x)[..., None]
        result = x / np.sqrt(squares / np.float32(x.shape[-1]) + np.float32(self.epsilon))
        result *= gamma
        return result
