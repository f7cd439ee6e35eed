"""`canonical.weighted_mean_pool`: a mean of tokens in which later ones weigh more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...dialect.record import Operand
from ..operator import FLOAT, CanonicalOperator, mask_operand


@dataclass(frozen=True)
class WeightedMeanPool(CanonicalOperator):
    """Mean of x over the tokens that the mask keeps, or over all, token t weighing t + 1.

    Tokens are counted from the start of the row, padding included. 0 where no token is kept.
    Source: SGPT, https://arxiv.org/abs/2202.08904, section 4.1.2.
    """

    OP = "canonical.weighted_mean_pool"
    OPERANDS = (Operand("x", FLOAT, "b s C"), mask_operand())
    RESULT = "b C"

    def evaluate(self, x: NDArray[Any], attention_mask: NDArray[Any] | None = None) -> NDArray[Any]:
        weights = np.broadcast_to(np.arange(1, x.shape[1] + 1, dtype=x.dtype), x.shape[:2])
        if attention_mask is not None:
            weights = weights * (attention_mask != 0)
        total = np.einsum("bsc,bs->bc", x, weights)
        return total / np.maximum(weights.sum(axis=1, keepdims=True), np.float32(1))
