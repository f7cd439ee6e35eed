"""Lowering of `canonical.tanh`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import relax

from ... import integer
from ...spec.exponential import BinaryExponential
from ...spec.presets import Preset
from ..context import LoweringContext
from ..forms import Form
from ..rule import SCALAR, LoweringRule, Need, activation
from ..value import IntegerValue

_FRACTION_BITS = 15


class LowerTanh(LoweringRule):
    """Hyperbolic tangent, in both presets.

    Expects x with one scale and no zero point. Emits ``integer.tanh`` (specification: `i-tanh`),
    int32 of 15 bits and the sign at the fixed scale 2^-15::

        y = tanh(x)  →  r = integer.requantise(x, m);  y = integer.tanh(r)
    """

    op = "canonical.tanh"

    def need(self, preset: Preset) -> Need:
        """One scale."""
        return Need(operands=(SCALAR,), plain=True)

    def lower(
        self,
        call: relax.Call,
        operands: Sequence[IntegerValue | relax.Var],
        context: LoweringContext,
    ) -> IntegerValue:
        name = str(call.attrs["name"])
        source = activation(operands[0]).scalar()
        scale = float(source.scale[0])
        exponential = context.guard(name, lambda: BinaryExponential.for_tanh(scale))
        out = context.emit(
            integer.tanh(source.var, exponential, name=name, fraction_bits=_FRACTION_BITS)
        )
        form = Form(out, name, np.array([2.0**-_FRACTION_BITS]), 0, (1 << _FRACTION_BITS) - 1)
        return IntegerValue(context, name, form)
