"""`integer.log1p_relu`: i-log1p."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...dialect.record import Operand, flattened
from ...spec.logarithm import Logarithm, log1p_relu
from ..domain import Entry
from ..operator import Elementwise
from ..traits import Traits
from ..types import NARROW


@dataclass(frozen=True)
class Log1pRelu(Elementwise):
    """``log2(1 + max(x, 0))`` in units of 2^-15.

    Parameters
    ----------
    constants : Logarithm
        Of the input's scale.
    """

    constants: Logarithm = field(metadata=flattened("log", Logarithm))

    OP = "integer.log1p_relu"
    OPERANDS = (Operand("x", NARROW, "... C"),)
    RESULT = "... C"
    dtype = "int32"
    TRAITS = Traits(elementwise=True, per_token=True)
    STAGE = "logarithm"

    def entry(self, x: Entry) -> Entry:
        return log1p_relu(x, self.constants)
