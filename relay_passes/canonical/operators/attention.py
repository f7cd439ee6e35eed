"""`canonical.attention`: scaled dot-product attention of all heads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...dialect.record import Operand
from ..errors import CanonicalError
from ..operator import FLOAT, CanonicalOperator, mask_operand


@dataclass(frozen=True)
class Attention(CanonicalOperator):
    """``softmax(scale q k^T + mask) v`` by head.

    Keys whose mask is 0 weigh exactly 0; a row without any key gives 0. Without a mask every token
    is a key of its sequence.

    Parameters
    ----------
    num_heads : int
        H; the channels of q, k and v are H * D.
    scale : float
        Of the scores.
    """

    num_heads: int
    scale: float

    OP = "canonical.attention"
    OPERANDS = (*(Operand(name, FLOAT, "b s C") for name in "qkv"), mask_operand())
    RESULT = "b s C"
    BY_SEQUENCE = True

    def check_dims(self, dims: Mapping[str, Any]) -> None:
        """Heads divide the channels."""
        if self.num_heads < 1 or dims["C"] % self.num_heads:
            raise CanonicalError(
                f"{dims['C']} channels do not divide by {self.num_heads} heads",
                self.where,
                "every head has the same number of channels",
                "check num_heads",
            )

    def evaluate(
        self,
        q: NDArray[Any],
        k: NDArray[Any],
        v: NDArray[Any],
        attention_mask: NDArray[Any] | None = None,
    ) -> NDArray[Any]:
        """See the class."""
        heads = (*q.shape[:2], self.num_heads, -1)
        q, k, v = (x.reshape(heads).transpose(0, 2, 1, 3) for x in (q, k, v))
        scores = q @ k.swapaxes(2, 3)
        scores *= np.float32(self.scale)
        if attention_mask is not None:
            scores += np.where(attention_mask != 0, np.float32(0), -np.inf)[:, None, None, :]
        # A row without keys has no largest score but -inf, and no weights but 0.
        scores -= np.maximum(scores.max(axis=-1, keepdims=True), np.finfo(np.float32).min)
        weights = np.exp(scores, out=scores)
        weights /= np.maximum(weights.sum(axis=-1, keepdims=True), np.finfo(np.float32).tiny)
        context = (weights @ v).transpose(0, 2, 1, 3)
        return context.reshape(*context.shape[:2], -1)
