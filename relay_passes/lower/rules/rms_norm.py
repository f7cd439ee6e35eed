"""Lowering of `canonical.rms_norm`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import relax

from ... import integer
from ...spec.layer_norm import LayerNormAffine, LayerNormConstants
from ...spec.presets import Preset
from ...spec.short_layer_norm import ShortLayerNorm
from ..context import LoweringContext
from ..forms import Form, storage
from ..norm_rows import fits_short, need_of_rows
from ..rule import SCALAR, STREAM, LoweringRule, Need, activation
from ..value import IntegerValue


class LowerRmsNorm(LoweringRule):
    """Normalisation by the root mean square, with an exact integer square root.

    As `LowerLayerNorm`, without mean and beta: ``integer.rms_norm`` of 21 bits, or of an input of
    15 bits ``integer.rms_norm_short`` where the preset allows it::

        y = rms_norm(x, gamma)  →  y = integer.rms_norm(x_s32, gain_s32)
    """

    op = "canonical.rms_norm"

    def need(self, preset: Preset) -> Need:
        """Reads one scale, yields the stream form."""
        return Need(operands=(SCALAR,), result=(STREAM,), plain=True)

    def need_of(self, call: relax.Call, preset: Preset) -> Need:
        """Rows of 15 bits where they are heads."""
        return need_of_rows(self.need(preset), call, preset)

    def lower(
        self,
        call: relax.Call,
        operands: Sequence[IntegerValue | relax.Var],
        context: LoweringContext,
    ) -> IntegerValue:
        name = str(call.attrs["name"])
        source = activation(operands[0]).scalar()
        quant = context.table_entry("stream", name)
        gamma = context.weight(call.args[1], name)
        scale, epsilon = float(source.scale[0]), float(call.attrs["epsilon"])
        beta = np.zeros_like(gamma)
        affine = context.guard(name, lambda: LayerNormAffine.from_scale(gamma, beta, quant.scale))
        gain = context.parameter(call.args[1].name, affine.gain)
        result = {
            "name": name,
            "shift": affine.shift,
            "low": quant.low,
            "high": quant.high,
            "dtype": storage(quant),
        }
        rows = context.table.stream.get(activation(operands[0]).name) if gamma.ndim > 1 else None
        if context.preset.short and fits_short(source, rows) and quant.high < 2**15:
            short = context.guard(
                name, lambda: ShortLayerNorm.from_scale(scale, epsilon, gamma.shape[-1])
            )
            out = context.emit(integer.rms_norm_short(source.var, gain, short, **result))
        else:
            bits = context.preset.reciprocal_bits
            wide = context.guard(
                name,
                lambda: LayerNormConstants.from_scale(
                    scale, epsilon, gamma.shape[-1], reciprocal_bits=bits
                ),
            )
            out = context.emit(integer.rms_norm(source.var, gain, wide, **result))
        magnitude = max(-quant.low, quant.high)
        return IntegerValue(context, name, Form(out, name, quant.channel_scale, 0, magnitude))
