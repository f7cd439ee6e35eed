"""`integer.clip`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...dialect.record import Operand
from ...spec.values import clamp
from ..checks import check_attribute
from ..domain import Entry
from ..operator import Elementwise
from ..traits import Traits
from ..types import NARROW, TensorType, dtype_bounds


@dataclass(frozen=True)
class Clip(Elementwise):
    """``min(max(x, low), high)``, of the same type.

    Parameters
    ----------
    low, high : int
        int32; low does not exceed high.
    """

    low: int
    high: int

    OP = "integer.clip"
    OPERANDS = (Operand("x", NARROW, "... C"),)
    RESULT = "... C"
    TRAITS = Traits(elementwise=True, per_token=True)
    STAGE = "clipped"

    def __post_init__(self) -> None:
        least, most = dtype_bounds("int32")
        check_attribute(self, "high", least, most)
        check_attribute(self, "low", least, self.high)

    def result_dtype(self, types: Mapping[str, TensorType]) -> str:
        """That of x."""
        return types["x"].dtype

    def entry(self, x: Entry) -> Entry:
        return clamp(x, self.low, self.high)
