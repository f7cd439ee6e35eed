"""Channels: joined, and scaled."""

from __future__ import annotations

import numpy as np

from ...dialect.arrays import Floats
from ...dialect.record import Operand
from ...dialect.rules import ConcatenateRule
from ..operator import FLOAT, CanonicalOperator


class Concatenate(ConcatenateRule, CanonicalOperator):
    """The channels of a, then those of b."""

    OPERANDS = (Operand("a", FLOAT, "... C"), Operand("b", FLOAT, "... D"))

    def evaluate(self, a: Floats, b: Floats) -> Floats:
        return np.concatenate([a, b], axis=-1)


class ScaleChannels(CanonicalOperator):
    """``x scale`` by channel, where no matrix before it takes the numbers over."""

    OPERANDS = (Operand("x", FLOAT, "... C"), Operand("scale", FLOAT, "C"))
    RESULT = "... C"

    def evaluate(self, x: Floats, scale: Floats) -> Floats:
        return x * scale
