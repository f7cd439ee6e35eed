"""`canonical.sqrt_mean_pool`: the sum of tokens over the root of their number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...dialect.record import Operand
from ..operator import FLOAT, CanonicalOperator, mask_operand


@dataclass(frozen=True)
class SqrtMeanPool(CanonicalOperator):
    """``sum / sqrt(n)`` of the n tokens of x that the mask keeps, or of all; 0 where n is 0."""

    OP = "canonical.sqrt_mean_pool"
    OPERANDS = (Operand("x", FLOAT, "b s C"), mask_operand())
    RESULT = "b C"

    def evaluate(self, x: NDArray[Any], attention_mask: NDArray[Any] | None = None) -> NDArray[Any]:
        if attention_mask is None:
            return x.sum(axis=1) / np.sqrt(np.float32(x.shape[1]))
        kept = (attention_mask != 0).astype(x.dtype)
        total = np.einsum("bsc,bs->bc", x, kept)
        return total / np.sqrt(np.maximum(kept.sum(axis=1, keepdims=True), np.float32(1)))
