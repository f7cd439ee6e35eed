"""`integer.gelu`: i-GELU by a polynomial that stays in 16 bits."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...dialect.record import Operand, flattened
from ...spec.clipped import ClippedPolynomial
from ...spec.gelu import gelu_accurate
from ..domain import Entry
from ..operator import Elementwise
from ..traits import Traits


@dataclass(frozen=True)
class Gelu(Elementwise):
    """Accurate i-GELU of a value at one scale; the result has the same scale.

    Parameters
    ----------
    constants : ClippedPolynomial
        Of the polynomial.
    """

    constants: ClippedPolynomial = field(metadata=flattened("gelu", ClippedPolynomial))

    OP = "integer.gelu"
    OPERANDS = (Operand("x", ("int8", "int16"), "... C"),)
    RESULT = "... C"
    dtype = "int16"
    TRAITS = Traits(elementwise=True, per_token=True)
    STAGE = "gelu"

    def stage_dtype(self, dtype: str) -> str:
        """Keep it as wide as the polynomial leaves it: what follows goes on from there."""
        return ""

    def entry(self, x: Entry) -> Entry:
        return gelu_accurate(x, self.constants)
