"""`canonical.attention_pool`: what one learned query of attention sees of a sequence."""

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
class AttentionPool(CanonicalOperator):
    """``softmax(scores) v`` by head, over the tokens of a sequence, [b, C].

    The scores are those of a query that is the same for every sequence, a linear function of the
    tokens: [b, s, H]. Tokens whose mask is 0 weigh exactly 0; 0 where there is none. Source: Set
    Transformer, https://arxiv.org/abs/1810.00825, section 3.2, with one seed vector.
    """

    OP = "canonical.attention_pool"
    OPERANDS = (
        Operand("scores", FLOAT, "b s H"),
        Operand("v", FLOAT, "b s C"),
        mask_operand(),
    )
    RESULT = "b C"

    def check_dims(self, dims: Mapping[str, Any]) -> None:
        """Heads divide the channels."""
        if dims["H"] < 1 or dims["C"] % dims["H"]:
            raise CanonicalError(
                f"{dims['C']} channels do not divide by {dims['H']} heads",
                self.where,
                "every head has the same number of channels",
                "check the scores",
            )

    def evaluate(
        self,
        scores: NDArray[Any],
        v: NDArray[Any],
        attention_mask: NDArray[Any] | None = None,
    ) -> NDArray[Any]:
        if attention_mask is not None:
            scores = np.where((attention_mask != 0)[:, :, None], scores, -np.inf)
        least = np.finfo(np.float32).min
        weights = np.exp(scores - np.maximum(scores.max(axis=1, keepdims=True), least))
        weights /= np.maximum(weights.sum(axis=1, keepdims=True), np.finfo(np.float32).tiny)
        heads = v.reshape(*v.shape[:2], scores.shape[2], -1)
        return np.einsum("bsh,bshd->bhd", weights, heads).reshape(len(v), -1).astype(v.dtype)
