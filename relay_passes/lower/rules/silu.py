"""Lowering of `canonical.silu`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from tvm import relax

from ... import integer
from ...spec.clipped import ClippedPolynomial
from ...spec.logistic import SILU
from ...spec.presets import Preset
from ..clipped import ClippedStream
from ..context import LoweringContext
from ..forms import Form
from ..rule import STREAM, LoweringRule, Need, activation
from ..value import IntegerValue

# beta x sigmoid(beta x) is never below -0.2785; the polynomial errs by 0.0035.
_NEGATIVE_LOBE = 0.29


class LowerSilu(LoweringRule):
    """``x sigmoid(beta x)``, in both presets.

    Expects x in stream form at a scale of the polynomial; at any other, x is requantised once more.
    Emits ``integer.silu`` (specification: `i-SiLU`), int16 at the scale of its input::

        y = silu(x)  →  r = integer.requantise(x, m);  y = integer.silu(r)
    """

    op = "canonical.silu"

    def need(self, preset: Preset) -> Need:
        """The scale of the polynomial, where beta is 1."""
        return Need(operands=(STREAM,), one_sided=True, stream_for=ClippedStream(SILU))

    def need_of(self, call: relax.Call, preset: Preset) -> Need:
        """The scale of the polynomial."""
        wish = ClippedStream(SILU.of_multiple(float(call.attrs["beta"])))
        return replace(self.need(preset), stream_for=wish)

    def lower(
        self,
        call: relax.Call,
        operands: Sequence[IntegerValue | relax.Var],
        context: LoweringContext,
    ) -> IntegerValue:
        name, beta = str(call.attrs["name"]), float(call.attrs["beta"])
        function = SILU.of_multiple(beta)
        source = ClippedStream(function).read(activation(operands[0]), name)
        scale = float(source.scale[0])
        constants = context.guard(name, lambda: ClippedPolynomial.from_scale(scale, function))
        out = context.emit(integer.silu(source.var, constants, name=name))
        magnitude = max(source.magnitude, math.ceil(_NEGATIVE_LOBE / beta / scale))
        return IntegerValue(context, name, Form(out, name, source.scale, 0, magnitude))
