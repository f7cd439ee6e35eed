"""`integer.tanh`: i-tanh."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...dialect.record import Operand, flattened
from ...spec.exponential import BinaryExponential
from ...spec.tanh import i_tanh
from ..checks import check_attribute
from ..domain import Entry
from ..operator import Elementwise
from ..traits import Traits
from ..types import NARROW


@dataclass(frozen=True)
class Tanh(Elementwise):
    """i-tanh at the scale 2^-fraction_bits.

    Parameters
    ----------
    exponential : BinaryExponential
        Constants of 2^(-2 |x| log2 e), from ``BinaryExponential.for_tanh(scale)``.
    fraction_bits : int
        The result's scale is 2^-fraction_bits, its bound 2^fraction_bits - 1.
    """

    exponential: BinaryExponential = field(metadata=flattened("exp", BinaryExponential))
    fraction_bits: int = 15

    OP = "integer.tanh"
    OPERANDS = (Operand("x", NARROW, "... C"),)
    RESULT = "... C"
    dtype = "int32"
    TRAITS = Traits(elementwise=True, per_token=True)
    STAGE = "tanh"

    def __post_init__(self) -> None:
        check_attribute(self, "fraction_bits", 1, 15)

    def entry(self, x: Entry) -> Entry:
        return i_tanh(x, self.exponential, self.fraction_bits)
