"""`integer.relu`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...dialect.record import Operand
from ...spec.values import maximum
from ..domain import Entry
from ..operator import Elementwise
from ..traits import Traits
from ..types import NARROW, TensorType


@dataclass(frozen=True)
class Relu(Elementwise):
    """``max(x, 0)``, of the same type."""

    OP = "integer.relu"
    OPERANDS = (Operand("x", ("uint8", *NARROW), "... C"),)
    RESULT = "... C"
    TRAITS = Traits(elementwise=True, per_token=True)
    STAGE = "relu"

    def result_dtype(self, types: Mapping[str, TensorType]) -> str:
        """That of x."""
        return types["x"].dtype

    def entry(self, x: Entry) -> Entry:
        return maximum(x, 0)
