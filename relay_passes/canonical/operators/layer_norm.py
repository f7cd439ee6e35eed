"""`canonical.layer_norm`: LayerNorm over the last axis, or over each head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...dialect.heads import BY_CHANNEL_OF_ROW
from ...dialect.record import Operand
from ..norm import Norm, by_rows
from ..operator import FLOAT


@dataclass(frozen=True)
class LayerNorm(Norm):
    """``(x - mean) / sqrt(variance + epsilon) gamma + beta`` of every row; see `Norm`."""

    OP = "canonical.layer_norm"
    OPERANDS = (
        Operand("x", FLOAT, "... C"),
        Operand("gamma", FLOAT, BY_CHANNEL_OF_ROW),
        Operand("beta", FLOAT, BY_CHANNEL_OF_ROW),
    )
    RESULT = "... C"

    def evaluate(self, x: NDArray[Any], gamma: NDArray[Any], beta: NDArray[Any]) -> NDArray[Any]:
        shape = x.shape
        x = by_rows(x, gamma)
        centred = x - x.mean(axis=-1, keepdims=True)
        squares = np.einsum("...c,...c->...", centred, centred)[..., None]
        centred /= np.sqrt(squares / np.float32(x.shape[-1]) + np.float32(self.epsilon))
        centred *= gamma
        centred += beta
        return centred.reshape(shape)
