"""Lowering of `canonical.sigmoid`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import relax

from ... import integer
from ...spec.clipped import ClippedPolynomial
from ...spec.logistic import SIGMOID, SIGMOID_BITS
from ...spec.presets import Preset
from ..clipped import ClippedStream
from ..context import LoweringContext
from ..forms import Form
from ..rule import STREAM, LoweringRule, Need, activation
from ..value import IntegerValue

_INPUT = ClippedStream(SIGMOID)


class LowerSigmoid(LoweringRule):
    """The logistic function, in both presets.

    Expects x in stream form at a scale of the polynomial; at any other, x is requantised once more.
    Emits ``integer.sigmoid`` (specification: `i-sigmoid`), int16 at the fixed scale 2^-15::

        y = sigmoid(x)  →  r = integer.requantise(x, m);  y = integer.sigmoid(r)
    """

    op = "canonical.sigmoid"

    def need(self, preset: Preset) -> Need:
        """The scale of the polynomial."""
        return Need(operands=(STREAM,), plain=True, one_sided=True, stream_for=_INPUT)

    def lower(
        self,
        call: relax.Call,
        operands: Sequence[IntegerValue | relax.Var],
        context: LoweringContext,
    ) -> IntegerValue:
        name = str(call.attrs["name"])
        source = _INPUT.read(activation(operands[0]), name)
        scale = float(source.scale[0])
        constants = context.guard(name, lambda: ClippedPolynomial.from_scale(scale, SIGMOID))
        out = context.emit(integer.sigmoid(source.var, constants, name=name))
        form = Form(out, name, np.array([2.0**-SIGMOID_BITS]), 0, 2**SIGMOID_BITS - 1)
        return IntegerValue(context, name, form)
