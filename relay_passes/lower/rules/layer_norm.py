"""Lowering of `canonical.layer_norm`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from tvm import relax

from ... import integer
from ...quantization_table import ActivationQuant
from ...spec.layer_norm import LayerNormAffine, LayerNormConstants
from ...spec.presets import Preset
from ...spec.short_layer_norm import ShortLayerNorm
from ..context import LoweringContext
from ..forms import Form, storage
from ..norm_rows import fits_short, need_of_rows
from ..rule import SCALAR, STREAM, LoweringRule, Need, activation
from ..value import IntegerValue


class LowerLayerNorm(LoweringRule):
    """Layer normalisation with an exact integer square root.

    Expects x with one scale and no zero point (a sum as it is, anything else in stream form).
    Emits ``integer.layer_norm`` (specification: `i-layer-norm`). The input's scale only enters
    epsilon; gamma, sqrt(C) and the output's scale are folded in the gain, beta in the offset. x is
    clamped to 21 bits; the result is the stream form, int16 unless its entry says otherwise. An
    input of 15 bits takes ``integer.layer_norm_short`` where the preset allows it::

        y = layer_norm(x, gamma, beta)  →  y = integer.layer_norm(x_s32, gain_s32, offset_s32)
    """

    op = "canonical.layer_norm"

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
        gamma, beta = (context.weight(argument, name) for argument in call.args[1:])
        epsilon, bits = float(call.attrs["epsilon"]), context.preset.reciprocal_bits
        rows = context.table.stream.get(activation(operands[0]).name) if gamma.ndim > 1 else None
        if context.preset.short and fits_short(source, rows) and quant.high < 2**15:
            out = _short(call, source, quant, (gamma, beta, epsilon), context)
            magnitude = max(-quant.low, quant.high)
            return IntegerValue(context, name, Form(out, name, quant.channel_scale, 0, magnitude))
        constants = context.guard(
            name,
            lambda: LayerNormConstants.from_scale(
                float(source.scale[0]), epsilon, gamma.shape[-1], reciprocal_bits=bits
            ),
        )
        affine = context.guard(name, lambda: LayerNormAffine.from_scale(gamma, beta, quant.scale))
        out = context.emit(
            integer.layer_norm(
                source.var,
                context.parameter(call.args[1].name, affine.gain),
                context.parameter(call.args[2].name, affine.offset),
                constants,
                name=name,
                shift=affine.shift,
                low=quant.low,
                high=quant.high,
                dtype=storage(quant),
            )
        )
        magnitude = max(-quant.low, quant.high)
        return IntegerValue(context, name, Form(out, name, quant.channel_scale, 0, magnitude))


def _short(
    call: relax.Call,
    source: Form,
    quant: ActivationQuant,
    affine_of: tuple[NDArray[np.float32], NDArray[np.float32], float],
    context: LoweringContext,
) -> relax.Var:
    """Emit the form for 15-bit inputs."""
    name = str(call.attrs["name"])
    gamma, beta, epsilon = affine_of
    scale = float(source.scale[0])
    width = gamma.shape[-1]
    constants = context.guard(name, lambda: ShortLayerNorm.from_scale(scale, epsilon, width))
    affine = context.guard(name, lambda: LayerNormAffine.from_scale(gamma, beta, quant.scale))
    offset = affine.offset + (affine.gain >> 1)  # n is rounded down: half a unit of it
    return context.emit(
        integer.layer_norm_short(
            source.var,
            context.parameter(call.args[1].name, affine.gain),
            context.parameter(call.args[2].name, offset),
            constants,
            name=name,
            shift=affine.shift,
            low=quant.low,
            high=quant.high,
            dtype=storage(quant),
        )
    )
