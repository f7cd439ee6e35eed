"""The input of a logistic polynomial: 15 bits at one of the scales that it is computed at."""

from __future__ import annotations

from dataclasses import dataclass

from ..quantization_table import ActivationQuant
from ..spec.logistic import is_logistic_scale
from ..spec.polynomial import clipped_scale
from .forms import Form
from .value import IntegerValue

_HIGH = 2**14 - 1


@dataclass(frozen=True)
class LogisticStream:
    """The stream form that suits a polynomial; equal ones are one wish.

    Parameters
    ----------
    limit : float
        Where the polynomial ends.
    """

    limit: float

    def __call__(self, largest: float) -> ActivationQuant:
        """Return the form for values up to `largest`."""
        return ActivationQuant(clipped_scale(self.limit, largest), -_HIGH, _HIGH)

    def read(self, operand: IntegerValue, consumer: str) -> Form:
        """Return the stream form of `operand`, requantised once more where its scale is another."""
        source = operand.stream()
        scale = float(source.scale[0])
        if source.magnitude < 2**15 and is_logistic_scale(scale, self.limit):
            return source
        return operand.term(self(scale * source.magnitude), consumer)
