"""Lowering of `canonical.log1p_relu`."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from tvm import relax

from ... import integer
from ...spec.logarithm import LOG_BITS, Logarithm, log1p_relu
from ...spec.presets import Preset
from ..context import LoweringContext
from ..forms import Form
from ..rule import STREAM, LoweringRule, Need, activation
from ..value import IntegerValue

_LARGEST = 2**15 - 1


class LowerLog1pRelu(LoweringRule):
    """Logarithm of one plus what is positive, in both presets.

    Expects x in stream form. Emits ``integer.log1p_relu`` (specification: `i-log1p`), int32 at the
    fixed scale ``2^-15 ln 2``::

        y = log1p_relu(x)  →  y = integer.log1p_relu(x_s16)
    """

    op = "canonical.log1p_relu"

    def need(self, preset: Preset) -> Need:
        """The stream form."""
        return Need(operands=(STREAM,), plain=True, one_sided=True)

    def lower(
        self,
        call: relax.Call,
        operands: Sequence[IntegerValue | relax.Var],
        context: LoweringContext,
    ) -> IntegerValue:
        name = str(call.attrs["name"])
        source = activation(operands[0]).stream()
        scale, limit = float(source.scale[0]), min(source.magnitude, _LARGEST)
        constants = context.guard(name, lambda: Logarithm.from_scale(scale, limit))
        out = context.emit(integer.log1p_relu(source.var, constants, name=name))
        magnitude = int(log1p_relu(limit, constants))
        form = Form(out, name, np.array([math.ldexp(math.log(2), -LOG_BITS)]), 0, magnitude)
        return IntegerValue(context, name, form)
