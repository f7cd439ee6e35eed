"""`canonical.mean_pool`: the mean of a sequence's tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...dialect.record import Operand
from ..operator import FLOAT, CanonicalOperator, mask_operand


@dataclass(frozen=True)
class MeanPool(CanonicalOperator):
    """Mean of x over the tokens that the mask keeps, or over all; 0 where there is none."""

    OP = "canonical.mean_pool"
    OPERANDS = (Operand("x", FLOAT, "b s C"), mask_operand())
    RESULT = "b C"

    def evaluate(self, x: NDArray[Any], attention_mask: NDArray[Any] | None = None) -> NDArray[Any]:
        if attention_mask is None:
            return x.mean(axis=1)
        kept = (attention_mask != 0).astype(x.dtype)
        total = np.einsum("bsc,bs->bc", x, kept)
        return total / np.maximum(kept.sum(axis=1, keepdims=True), np.float32(1))
