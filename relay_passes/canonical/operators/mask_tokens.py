"""`canonical.mask_tokens`: 0 at padding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from ...dialect.record import Operand
from ..operator import FLOAT, INDEX, CanonicalOperator


@dataclass(frozen=True)
class MaskTokens(CanonicalOperator):
    """x where the mask is not 0, else 0."""

    OP = "canonical.mask_tokens"
    OPERANDS = (
        Operand("x", FLOAT, "b s C"),
        Operand("attention_mask", INDEX, "b s", is_mask=True, is_input=True),
    )
    RESULT = "b s C"

    def evaluate(self, x: NDArray[Any], attention_mask: NDArray[Any]) -> NDArray[Any]:
        return x * (attention_mask != 0).astype(x.dtype)[:, :, None]
