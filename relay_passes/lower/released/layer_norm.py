"""Lowering of `canonical.layer_norm`, preset ``released``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import relax

from ... import integer
from ...errors import LoweringError
from ...spec.presets import Preset
from ...spec.released import ReleasedLayerNorm, layer_norm
from ..context import LoweringContext
from ..forms import Form
from ..rule import SCALAR, LoweringRule, Need, activation
from ..value import IntegerValue
from .value import ReleasedValue


class LowerReleasedLayerNorm(LoweringRule, preset="released"):
    """Layer normalisation with 2^31 / sigma and a bias of beta / gamma.

    Expects x with one scale and no zero point: the clamped sum. Emits
    ``integer.released_layer_norm``, int64 at the scale ``gamma sqrt(C) / 2^30`` per channel, which
    the table's grid then brings to 8 bits::

        y = layer_norm(x, gamma, beta)  →  n = integer.released_layer_norm(x_s32, offset_s64)
                                           y = integer.requantise_even(n, m, e)
    """

    op = "canonical.layer_norm"

    def need(self, preset: Preset) -> Need:
        """Reads one scale; readers that take any form need the stream's."""
        return Need(operands=(SCALAR,), readable=False)

    def lower(
        self,
        call: relax.Call,
        operands: Sequence[IntegerValue | relax.Var],
        context: LoweringContext,
    ) -> IntegerValue:
        name = str(call.attrs["name"])
        source = activation(operands[0]).scalar()
        gamma, beta = (context.weight(argument, name) for argument in call.args[1:])
        if gamma.ndim > 1:
            raise LoweringError(
                "a layer norm of each head",
                where=name,
                why="the released code, whose arithmetic this preset repeats, normalises all "
                "channels of a token",
                todo="quantise the model with the preset 'accurate' or 'paper'",
            )
        offset, scale = context.guard(name, lambda: layer_norm.offset_and_scale(gamma, beta))
        shift = int(context.table.norm_shifts.get(name, 0))
        constants = context.guard(name, lambda: ReleasedLayerNorm(shift))
        out = context.emit(
            integer.released_layer_norm(
                source.var,
                context.parameter(f"{name}.offset", offset),
                constants,
                name=f"{name}.normalised",
            )
        )
        magnitude = layer_norm.NORMALISED_LIMIT + int(np.abs(offset).max())
        return ReleasedValue(context, name, Form(out, f"{name}.normalised", scale, 0, magnitude))
