"""`canonical.max_pool`: the largest value of every channel among a sequence's tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...dialect.record import Operand
from ..operator import FLOAT, CanonicalOperator, mask_operand


@dataclass(frozen=True)
class MaxPool(CanonicalOperator):
    """Maximum of x over the tokens that the mask keeps, or over all; 0 where there is none."""

    OP = "canonical.max_pool"
    OPERANDS = (Operand("x", FLOAT, "b s C"), mask_operand())
    RESULT = "b C"

    def evaluate(self, x: NDArray[Any], attention_mask: NDArray[Any] | None = None) -> NDArray[Any]:
        if attention_mask is None:
            return x.max(axis=1)
        kept = (attention_mask != 0)[:, :, None]
        largest = np.where(kept, x, -np.inf).max(axis=1)
        return np.where(kept.any(axis=1), largest, 0).astype(x.dtype)
