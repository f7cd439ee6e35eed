"""Lowering of `canonical.concatenate`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import relax

from ... import integer
from ...spec.presets import Preset
from ..context import LoweringContext
from ..forms import Form
from ..rule import NATIVE, LoweringRule, Need, activation
from ..value import IntegerValue


class LowerConcatenate(LoweringRule):
    """The channels of two values, one after the other.

    Takes any forms without a zero point and keeps their scales, which become scales by channel::

        y = concatenate(a, b)  →  y = integer.concatenate(a, b)               # S_a ..., S_b ...
    """

    op = "canonical.concatenate"

    def need(self, preset: Preset) -> Need:
        """Any forms."""
        return Need(operands=(NATIVE, NATIVE))

    def lower(
        self,
        call: relax.Call,
        operands: Sequence[IntegerValue | relax.Var],
        context: LoweringContext,
    ) -> IntegerValue:
        name = str(call.attrs["name"])
        forms = [activation(operand).ordered() for operand in operands]
        out = context.emit(integer.concatenate(*(form.var for form in forms), name=name))
        widths = [int(form.var.ty.shape.values[-1]) for form in forms]
        scales = [
            np.broadcast_to(form.scale, (width,)) for form, width in zip(forms, widths, strict=True)
        ]
        magnitude = max(form.magnitude for form in forms)
        return IntegerValue(context, name, Form(out, name, np.concatenate(scales), 0, magnitude))
