"""Lowering of `canonical.gelu`."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvm import relax

from ... import integer
from ...spec.clipped import ClippedPolynomial
from ...spec.gelu import GELU, PaperGelu
from ...spec.presets import Preset
from ..clipped import ClippedStream
from ..context import LoweringContext
from ..forms import Form
from ..rule import NATIVE, STREAM, LoweringRule, Need, activation
from ..value import IntegerValue

# The approximation is below 0.2 in absolute value for negative inputs.
_NEGATIVE_LOBE = 0.2
_INPUT = ClippedStream(GELU)


class LowerGelu(LoweringRule):
    """GELU in the form of the preset.

    ``accurate``: expects x in stream form at a scale of the polynomial; at any other, x is
    requantised once more. Emits ``integer.gelu``, int16 at the scale of its input. ``paper``: takes
    what the producer yields, as a rule the int32 accumulator with a scale per channel; emits the
    published form with its constants per channel, int64 at a scale per channel that is negative.
    Both the erf and the tanh definition of GELU lower to the same approximation, which is about as
    coarse as their difference::

        g = gelu(y)  →  r = integer.requantise(y, m);  g = integer.gelu(r)       # accurate
        g = gelu(y)  →  g = integer.gelu(y, q_b, q_c, q_1, erf_shift)            # paper
    """

    op = "canonical.gelu"

    def need(self, preset: Preset) -> Need:
        """One scale for the accurate form, any for the published one."""
        if preset.gelu == "polynomial":
            return Need(operands=(STREAM,), one_sided=True, stream_for=_INPUT)
        return Need(operands=(NATIVE,), readable=False, one_sided=True)

    def lower(
        self,
        call: relax.Call,
        operands: Sequence[IntegerValue | relax.Var],
        context: LoweringContext,
    ) -> IntegerValue:
        name = str(call.attrs["name"])
        operand = activation(operands[0])
        if context.preset.gelu == "polynomial":
            form = _accurate(name, operand, context)
        else:
            native = operand.native()
            usable = native.zero_point == 0 and (native.scale > 0).all()
            form = _paper(name, native if usable else operand.stream(), context)
        return IntegerValue(context, name, form)


def _accurate(name: str, operand: IntegerValue, context: LoweringContext) -> Form:
    source = _INPUT.read(operand, name)
    scale = float(source.scale[0])
    constants = context.guard(name, lambda: ClippedPolynomial.from_scale(scale, GELU))
    out = context.emit(integer.gelu(source.var, constants, name=name))
    magnitude = max(source.magnitude, math.ceil(_NEGATIVE_LOBE / scale))
    return Form(out, name, source.scale, 0, magnitude)


def _paper(name: str, source: Form, context: LoweringContext) -> Form:
    coefficients = context.preset.erf_coefficients
    k = context.guard(name, lambda: PaperGelu.from_scales(source.scale, coefficients))
    arrays = (("q_b", k.q_b), ("q_c", k.q_c), ("q_1", k.q_1), ("erf_shift", k.erf_shift))
    constants = [context.parameter(f"{name}.{label}", array) for label, array in arrays]
    out = context.emit(integer.gelu_paper(source.var, *constants, name=name))
    # |i_erf| is at most |q_1|, but for the floors of its constants.
    magnitude = source.magnitude * (2 * int(abs(k.q_1.astype("int64")).max()) + 4)
    return Form(out, name, k.scales, 0, magnitude)
