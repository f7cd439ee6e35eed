"""Lowering of `canonical.l2_norm`."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from tvm import relax

from ... import integer
from ...quantization_table import ActivationQuant
from ...spec import layer_norm, short_layer_norm
from ...spec.layer_norm import LayerNormAffine, LayerNormConstants
from ...spec.presets import Preset
from ...spec.short_layer_norm import ShortLayerNorm
from ..context import LoweringContext
from ..forms import Form
from ..rule import SCALAR, LoweringRule, Need, activation
from ..value import IntegerValue

_FRACTION_BITS = 15
_HIGH = 2**_FRACTION_BITS - 1


class LowerL2Norm(LoweringRule):
    """Rows scaled to length 1: an RMSNorm whose gamma is ``1 / sqrt(C)``.

    Expects x with one scale and no zero point. Emits ``integer.rms_norm`` of 21 bits, or of an
    input of 15 bits ``integer.rms_norm_short`` where the preset allows it, int16 at the fixed scale
    2^-15: no entry is larger than 1, whatever the data, so nothing is calibrated and vectors of
    different models compare. The least epsilon that the operators have leaves a row of zeros what
    it is::

        y = l2_norm(x)  →  y = integer.rms_norm(x_s32, gain_s32)                         # 2^-15
    """

    op = "canonical.l2_norm"

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
        source = _within(activation(operands[0]), name)
        channels = int(source.var.ty.shape.values[-1])
        output = np.array([2.0**-_FRACTION_BITS])
        gamma, beta = np.full(channels, 1 / math.sqrt(channels)), np.zeros(channels)
        affine = context.guard(
            name, lambda: LayerNormAffine.from_scale(gamma, beta, float(output[0]))
        )
        gain = context.parameter(f"{name}.gain", affine.gain)
        result = {
            "name": name,
            "shift": affine.shift,
            "low": -_HIGH,
            "high": _HIGH,
            "dtype": "int16",
        }
        scale = float(source.scale[0])
        if context.preset.short and source.magnitude <= short_layer_norm.INPUT_LIMIT:
            short = context.guard(name, lambda: ShortLayerNorm.from_scale(scale, 0.0, channels))
            out = context.emit(integer.rms_norm_short(source.var, gain, short, **result))
        else:
            bits = context.preset.reciprocal_bits
            wide = context.guard(
                name,
                lambda: LayerNormConstants.from_scale(scale, 0.0, channels, reciprocal_bits=bits),
            )
            out = context.emit(integer.rms_norm(source.var, gain, wide, **result))
        return IntegerValue(context, name, Form(out, name, output, 0, _HIGH))


def _within(operand: IntegerValue, consumer: str) -> Form:
    """A form that the operator does not clip: a mean has more fraction bits than it takes."""
    source = operand.scalar()
    limit = layer_norm.INPUT_LIMIT
    if source.magnitude <= limit:
        return source
    scale = float(source.scale[0]) * source.magnitude / limit
    return operand.term(ActivationQuant(scale, -limit, limit), consumer)
