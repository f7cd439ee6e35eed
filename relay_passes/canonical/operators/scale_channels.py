"""`canonical.scale_channels`: each channel times a number of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from ...dialect.record import Operand
from ..operator import FLOAT, CanonicalOperator


@dataclass(frozen=True)
class ScaleChannels(CanonicalOperator):
    """``x scale`` by channel, where no matrix before it takes the numbers over."""

    OP = "canonical.scale_channels"
    OPERANDS = (Operand("x", FLOAT, "... C"), Operand("scale", FLOAT, "C"))
    RESULT = "... C"

    def evaluate(self, x: NDArray[Any], scale: NDArray[Any]) -> NDArray[Any]:
        return x * scale
