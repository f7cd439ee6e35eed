"""`integer.leaky_relu`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...dialect.record import Operand
from ...spec.fixed_point import requantise
from ...spec.values import maximum
from ..checks import check_attribute
from ..domain import Entry
from ..operator import Elementwise
from ..traits import Traits
from ..types import TensorType

FRACTION_BITS = 15


@dataclass(frozen=True)
class LeakyRelu(Elementwise):
    """``max(x, (x slope + 2^14) >> 15)``, of the same type.

    Parameters
    ----------
    slope : int
        In units of 2^-15, 0 to 2^15.
    """

    slope: int

    OP = "integer.leaky_relu"
    OPERANDS = (Operand("x", ("int8", "int16", "int32"), "... C"),)
    RESULT = "... C"
    TRAITS = Traits(elementwise=True, per_token=True)
    STAGE = "leaky"

    def __post_init__(self) -> None:
        check_attribute(self, "slope", 0, 1 << FRACTION_BITS)

    def result_dtype(self, types: Mapping[str, TensorType]) -> str:
        """That of x."""
        return types["x"].dtype

    def entry(self, x: Entry) -> Entry:
        return maximum(x, requantise(x, self.slope, FRACTION_BITS))
