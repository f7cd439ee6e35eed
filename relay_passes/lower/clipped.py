"""The input of a clipped polynomial: 15 bits at one of the scales that it is computed at."""

from __future__ import annotations

from dataclasses import dataclass

from ..quantization_table import ActivationQuant
from ..spec.clipped import ClippedFunction, clipped_scale
from .forms import Form
from .value import IntegerValue

_HIGH = 2**14 - 1


@dataclass(frozen=True)
class ClippedStream:
    """The stream form that suits a polynomial; equal ones are one wish.

    Parameters
    ----------
    function : ClippedFunction
        What the polynomial approximates.
    """

    function: ClippedFunction

    def __call__(self, largest: float) -> ActivationQuant:
        """Return the form for values up to `largest`."""
        return ActivationQuant(clipped_scale(self.function.limit, largest), -_HIGH, _HIGH)

    def read(self, operand: IntegerValue, consumer: str) -> Form:
        """Return the stream form of `operand`, requantised once more where its scale is another."""
        source = operand.stream()
        scale = float(source.scale[0])
        if source.magnitude < 2**15 and self.function.up_shift(scale) is not None:
            return source
        return operand.term(self(scale * source.magnitude), consumer)
