"""`integer.sigmoid`: i-sigmoid by a polynomial that stays in 16 bits."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...dialect.record import Operand, flattened
from ...spec.clipped import ClippedPolynomial
from ...spec.logistic import sigmoid
from ..domain import Entry
from ..operator import Elementwise
from ..traits import Traits
from ..types import NARROW


@dataclass(frozen=True)
class Sigmoid(Elementwise):
    """``1 / (1 + exp(-x))`` in units of 2^-15, from 1 to 2^15 - 1.

    Parameters
    ----------
    constants : ClippedPolynomial
        Of the polynomial.
    """

    constants: ClippedPolynomial = field(metadata=flattened("logistic", ClippedPolynomial))

    OP = "integer.sigmoid"
    OPERANDS = (Operand("x", NARROW, "... C"),)
    RESULT = "... C"
    dtype = "int16"
    TRAITS = Traits(elementwise=True, per_token=True)
    STAGE = "sigmoid"

    def stage_dtype(self, dtype: str) -> str:
        """Keep it as wide as the polynomial leaves it: what follows goes on from there."""
        return ""

    def entry(self, x: Entry) -> Entry:
        return sigmoid(x, self.constants)
