"""Lowering of `canonical.leaky_relu`."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax

from ... import integer
from ...integer.operators.leaky_relu import FRACTION_BITS
from ...spec.presets import Preset
from ..context import LoweringContext
from ..forms import Form
from ..rule import STREAM, LoweringRule, Need, activation
from ..value import IntegerValue


class LowerLeakyRelu(LoweringRule):
    """``max(x, slope x)``, the slope in units of 2^-15.

    Keeps type, scale and bound of the stream form, in which a product has 30 bits::

        y = leaky_relu(x)  →  y = integer.leaky_relu(x_stream)
    """

    op = "canonical.leaky_relu"

    def need(self, preset: Preset) -> Need:
        """One scale."""
        return Need(operands=(STREAM,), plain=True)

    def lower(
        self,
        call: relax.Call,
        operands: Sequence[IntegerValue | relax.Var],
        context: LoweringContext,
    ) -> IntegerValue:
        name = str(call.attrs["name"])
        source = activation(operands[0]).stream()
        slope = round(float(call.attrs["slope"]) * 2**FRACTION_BITS)
        out = context.emit(integer.leaky_relu(source.var, name=name, slope=slope))
        return IntegerValue(context, name, Form(out, name, source.scale, 0, source.magnitude))
