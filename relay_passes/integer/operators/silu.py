"""`integer.silu`: i-SiLU by a polynomial that stays in 16 bits."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...dialect.record import Operand, flattened
from ...spec.clipped import ClippedPolynomial
from ...spec.logistic import silu
from ..domain import Entry
from ..operator import Elementwise
from ..traits import Traits
from ..types import NARROW


@dataclass(frozen=True)
class Silu(Elementwise):
    """``x sigmoid(beta x)`` of a value at one scale; the result has the same scale.

    Parameters
    ----------
    constants : ClippedPolynomial
        Of the polynomial; beta is in the scale.
    """

    constants: ClippedPolynomial = field(metadata=flattened("logistic", ClippedPolynomial))

    OP = "integer.silu"
    OPERANDS = (Operand("x", NARROW, "... C"),)
    RESULT = "... C"
    dtype = "int16"
    TRAITS = Traits(elementwise=True, per_token=True)
    STAGE = "silu"

    def stage_dtype(self, dtype: str) -> str:
        """Keep it as wide as the polynomial leaves it: what follows goes on from there."""
        return ""

    def entry(self, x: Entry) -> Entry:
        return silu(x, self.constants)
