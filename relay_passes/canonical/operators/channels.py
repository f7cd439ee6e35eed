"""Channels: joined, and scaled."""

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
class Concatenate(CanonicalOperator):
    """The channels of a, then those of b."""

    OP = "canonical.concatenate"
    OPERANDS = (Operand("a", FLOAT, "... C"), Operand("b", FLOAT, "... D"))

    def result_shape(self, dims: Mapping[str, Any]) -> tuple[Dim, ...]:
        """[..., C + D]."""
        return (*dims["..."], dims["C"] + dims["D"])

    def evaluate(self, a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
        return np.concatenate([a, b], axis=-1)


@dataclass(frozen=True)
class ScaleChannels(CanonicalOperator):
    """``x scale`` by channel, where no matrix before it takes the numbers over."""

    OP = "canonical.scale_channels"
    OPERANDS = (Operand("x", FLOAT, "... C"), Operand("scale", FLOAT, "C"))
    RESULT = "... C"

    def evaluate(self, x: NDArray[Any], scale: NDArray[Any]) -> NDArray[Any]:
        return x * scale
