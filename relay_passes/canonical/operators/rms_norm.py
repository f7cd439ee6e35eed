"""`canonical.rms_norm`: RMSNorm over the last axis, or over each head."""

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
class RmsNorm(Norm):
    """``x / sqrt(mean of x^2 + epsilon) gamma`` of every row of channels; see `Norm`."""

    OP = "canonical.rms_norm"
    OPERANDS = (Operand("x", FLOAT, "... C"), Operand("gamma", FLOAT, BY_CHANNEL_OF_ROW))
    RESULT = "... C"

    def evaluate(self, x: NDArray[Any], gamma: NDArray[Any]) -> NDArray[Any]:
        shape = x.shape
        x = by_rows(x, gamma)
        squares = np.einsum("...c,...c->...", x, x)[..., None]
        result = x / np.sqrt(squares / np.float32(x.shape[-1]) + np.float32(self.epsilon))
        result *= gamma
        return result.reshape(shape)
