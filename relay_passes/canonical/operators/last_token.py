"""`canonical.last_token`: the last token of every sequence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...dialect.record import Operand
from ..operator import FLOAT, INDEX, CanonicalOperator


@dataclass(frozen=True)
class LastToken(CanonicalOperator):
    """The last token of x that the mask keeps, on whichever side padding is; 0 if none is kept."""

    OP = "canonical.last_token"
    OPERANDS = (
        Operand("x", FLOAT, "b s C"),
        Operand("attention_mask", INDEX, "b s", is_mask=True, is_input=True),
    )
    RESULT = "b C"

    def evaluate(self, x: NDArray[Any], attention_mask: NDArray[Any]) -> NDArray[Any]:
        kept = attention_mask != 0
        last = kept.shape[1] - 1 - np.argmax(kept[:, ::-1], axis=1)
        found = x[np.arange(x.shape[0]), last]
        found *= kept.any(axis=1, keepdims=True)
        return found
