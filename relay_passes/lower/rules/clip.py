"""Lowering of `canonical.clip`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import relax

from ... import integer
from ...spec.presets import Preset
from ..context import LoweringContext
from ..forms import Form
from ..rule import STREAM, LoweringRule, Need, activation
from ..value import IntegerValue


class LowerClip(LoweringRule):
    """Bounds rounded to steps of the stream form, which is cut at its own range anyway.

    Keeps type and scale; a bound is off by half a step at most::

        y = clip(x)  →  y = integer.clip(x_stream)
    """

    op = "canonical.clip"

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
        bounds = np.array([float(call.attrs["low"]), float(call.attrs["high"])])
        steps = np.clip(bounds / source.scale[0], -source.magnitude, source.magnitude)
        low, high = np.floor(steps + 0.5).astype(np.int64).tolist()
        out = context.emit(integer.clip(source.var, name=name, low=low, high=high))
        magnitude = max(abs(low), abs(high), 1)
        return IntegerValue(context, name, Form(out, name, source.scale, 0, magnitude))
