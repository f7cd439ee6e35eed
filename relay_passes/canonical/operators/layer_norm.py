"""`canonical.layer_norm`: LayerNorm over the last axis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...dialect.record import Operand
from ..operator import FLOAT, CanonicalOperator


@dataclass(frozen=True)
class LayerNorm(CanonicalOperator):
    """``(x - mean) / sqrt(variance + epsilon) gamma + beta`` of every row of channels.

    Parameters
    ----------
    epsilon : float
    """

    epsilon: float

    OP = "canonical.layer_norm"
    OPERANDS = (
        Operand("x", FLOAT, "... C"),
        Operand("gamma", FLOAT, "C"),
        Operand("beta", FLOAT, "C"),
    )
    RESULT = "... C"

    def evaluate(self, x: NDArray[Any], gamma: NDArray[Any], beta: NDArray[Any]) -> NDArray[Any]:
        """See the class."""
        centred = x - x.mean(axis=-1, keepdims=True)
        squares = np.einsum("...c,...c->...", centred, centred)[..., None]
        centred /= np.sqrt(squares / np.float32(x.shape[-1]) + np.float32(self.epsilon))
        centred *= gamma
        centred += beta
        return centred
