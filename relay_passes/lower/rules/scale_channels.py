"""Lowering of `canonical.scale_channels`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import relax

from ...spec.presets import Preset
from ..context import LoweringContext
from ..forms import Form
from ..rule import STREAM, LoweringRule, Need, activation
from ..value import IntegerValue


class LowerScaleChannels(LoweringRule):
    """Each channel times a number of its own.

    Emits nothing: the numbers become scales, by channel, of the integers that are there, and the
    requantisation to the form that is read takes them over::

        y = scale_channels(x, w)  →  x_stream                                     # S_x w[c]
    """

    op = "canonical.scale_channels"

    def need(self, preset: Preset) -> Need:
        """One scale; what it yields is read in no other form than a requantised one."""
        return Need(operands=(STREAM,), readable=False)

    def lower(
        self,
        call: relax.Call,
        operands: Sequence[IntegerValue | relax.Var],
        context: LoweringContext,
    ) -> IntegerValue:
        name = str(call.attrs["name"])
        source = activation(operands[0]).stream()
        scale = source.scale * np.asarray(context.weight(call.args[1], name), np.float64)
        form = Form(source.var, source.value, scale, 0, source.magnitude, readable=False)
        return IntegerValue(context, name, form)
