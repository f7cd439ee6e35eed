"""`canonical.prepend_tokens`: the same rows before every sequence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...dialect.record import Operand
from ...dialect.types import Dim
from ..operator import FLOAT, CanonicalOperator


@dataclass(frozen=True)
class PrependTokens(CanonicalOperator):
    """Put the rows `tokens` before every sequence of x."""

    OP = "canonical.prepend_tokens"
    OPERANDS = (Operand("x", FLOAT, "b s C"), Operand("tokens", FLOAT, "N C"))

    def result_shape(self, dims: Mapping[str, Any]) -> tuple[Dim, ...]:
        """As many tokens more as there are rows."""
        return dims["b"], dims["s"] + dims["N"], dims["C"]

    def evaluate(self, x: NDArray[Any], tokens: NDArray[Any]) -> NDArray[Any]:
        rows = np.broadcast_to(tokens, (len(x), *tokens.shape))
        return np.concatenate([rows, x], axis=1)
