"""Channels: joined, and scaled."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...dialect.arrays import Floats
from ...dialect.record import Dims, Operand
from ...dialect.types import Dim
from ..operator import FLOAT, CanonicalOperator


@dataclass(frozen=True)
class Concatenate(CanonicalOperator):
    """The channels of a, then those of b."""

    OP = "canonical.concatenate"
    OPERANDS = (Operand("a", FLOAT, "... C"), Operand("b", FLOAT, "... D"))

    def result_shape(self, dims: Dims) -> tuple[Dim, ...]:
        """[..., C + D]."""
        return (*dims["..."], dims["C"] + dims["D"])

    def evaluate(self, a: Floats, b: Floats) -> Floats:
        return np.concatenate([a, b], axis=-1)


@dataclass(frozen=True)
class ScaleChannels(CanonicalOperator):
    """``x scale`` by channel, where no matrix before it takes the numbers over."""

    OP = "canonical.scale_channels"
    OPERANDS = (Operand("x", FLOAT, "... C"), Operand("scale", FLOAT, "C"))
    RESULT = "... C"

    def evaluate(self, x: Floats, scale: Floats) -> Floats:
        return x * scale
