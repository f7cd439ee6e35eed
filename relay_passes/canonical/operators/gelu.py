"""`canonical.gelu`: GELU, exact or by tanh."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...dialect.record import Operand
from ..operator import CANONICAL, FLOAT, CanonicalOperator

GELU_FORMS = ("erf", "tanh")


@dataclass(frozen=True)
class Gelu(CanonicalOperator):
    """``x Phi(x)``, elementwise.

    Parameters
    ----------
    form : {"erf", "tanh"}
        Exact, or the usual approximation.
    """

    form: str = "erf"

    OP = "canonical.gelu"
    OPERANDS = (Operand("x", FLOAT, "... C"),)
    RESULT = "... C"
    ELEMENTWISE = True

    def __post_init__(self) -> None:
        CANONICAL.choose("form", self.form, GELU_FORMS, self.where)

    def evaluate(self, x: NDArray[Any]) -> NDArray[Any]:
        from scipy.special import erf

        if self.form == "erf":
            result = erf(x * np.float32(0.5**0.5))
        else:
            result = x * x
            result *= np.float32(0.044715)
            result += np.float32(1)
            result *= x
            result *= np.float32((2 / np.pi) ** 0.5)
            np.tanh(result, out=result)
        result += np.float32(1)
        result *= x
        result *= np.float32(0.5)
        return result
