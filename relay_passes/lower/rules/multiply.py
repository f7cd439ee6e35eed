"""Lowering of `canonical.multiply`."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax

from ... import integer
from ...quantization_table import ActivationQuant
from ...spec.presets import Preset
from ..context import LoweringContext
from ..forms import Form
from ..rule import STREAM, LoweringRule, Need, activation
from ..value import IntegerValue

_HIGH = 2**15 - 1
_SHORT_HIGH = 2**14 - 1
_SMALLEST = 1e-3  # a factor that calibration saw nothing of still gets a scale


class LowerMultiply(LoweringRule):
    """Product of two values, in both presets.

    Reads both at one scale, in 16 bits: as they are where they have them, otherwise in stream form.
    Emits ``integer.multiply``, int32, exact: it is rounded once, by the requantisation to the form
    that is read, whose factors may differ by channel::

        y = multiply(a, b)  →  y = integer.multiply(a_s16, b_s16)                 # S_a S_b
                               q = integer.requantise(y, m)                       # for its reader
    """

    op = "canonical.multiply"

    def need(self, preset: Preset) -> Need:
        """Reads stream forms; what it yields is read in no other form than a requantised one."""
        wish = _short_stream if preset.short else None
        return Need(operands=(STREAM, STREAM), readable=False, stream_for=wish)

    def lower(
        self,
        call: relax.Call,
        operands: Sequence[IntegerValue | relax.Var],
        context: LoweringContext,
    ) -> IntegerValue:
        name = str(call.attrs["name"])
        a, b = (_factor(activation(operand), name) for operand in operands)
        out = context.emit(integer.multiply(a.var, b.var, name=name))
        magnitude = a.magnitude * b.magnitude
        form = Form(out, name, a.scale * b.scale, 0, magnitude, readable=False)
        return IntegerValue(context, name, form)


def _short_stream(largest: float) -> ActivationQuant:
    """15 bits, which a requantisation in 16-bit arithmetic gives."""
    return ActivationQuant(max(largest, _SMALLEST) / _SHORT_HIGH, -_SHORT_HIGH, _SHORT_HIGH)


def _factor(operand: IntegerValue, consumer: str) -> Form:
    """A form in 16 bits, with one scale."""
    native = operand.native()
    source = native if native.plain and native.magnitude <= _HIGH else operand.stream()
    if source.magnitude <= _HIGH:
        return source
    largest = float(source.scale[0]) * source.magnitude
    return operand.term(ActivationQuant(largest / _HIGH, -_HIGH, _HIGH), consumer)
