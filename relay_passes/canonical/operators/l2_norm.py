"""`canonical.l2_norm`: rows scaled to length 1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...dialect.record import Operand
from ..operator import FLOAT, CanonicalOperator


@dataclass(frozen=True)
class L2Norm(CanonicalOperator):
    """``x / |x|`` of every row of channels, |x| its Euclidean length; a row of zeros stays one."""

    OP = "canonical.l2_norm"
    OPERANDS = (Operand("x", FLOAT, "... C"),)
    RESULT = "... C"

    def evaluate(self, x: NDArray[Any]) -> NDArray[Any]:
        length = np.sqrt(np.einsum("...c,...c->...", x, x))[..., None]
        return x / np.maximum(length, np.finfo(x.dtype).tiny)
