"""Lowering of `canonical.layer_norm`."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax

from .. import integer
from ..spec.layer_norm import LayerNormAffine, LayerNormConstants
from ..spec.presets import Preset
from .context import LoweringContext
from .forms import Form, IntegerValue, storage
from .rule import SCALAR, STREAM, LoweringRule, Need, activation


class LowerLayerNorm(LoweringRule):
    """Layer normalisation with an exact integer square root.

    Expects x with one scale and no zero point (a sum as it is, anything else in stream form).
    Emits ``integer.layer_norm`` (specification: `i-layer-norm`). The input's scale only enters
    epsilon; gamma, sqrt(C) and the output's scale are folded in the gain, beta in the offset. x is
    clamped to 21 bits; the result is the stream form, int16 unless its entry says otherwise::

        y = layer_norm(x, gamma, beta)  →  y = integer.layer_norm(x_s32, gain_s32, offset_s32)
    """

    op = "canonical.layer_norm"

    def need(self, preset: Preset) -> Need:
        """Reads one scale, yields the stream form."""
        return Need(operands=(SCALAR,), result=(STREAM,), plain=True)

    def lower(
        self,
        call: relax.Call,
        operands: Sequence[IntegerValue | relax.Var],
        context: LoweringContext,
    ) -> IntegerValue:
        """See the class."""
        name = str(call.attrs["name"])
        source = activation(operands[0]).scalar()
        quant = context.table_entry("stream", name)
        gamma, beta = (context.weight(argument, name) for argument in call.args[1:])
        epsilon, bits = float(call.attrs["epsilon"]), context.preset.reciprocal_bits
        constants = context.guard(
            name,
            lambda: LayerNormConstants.from_scale(
                float(source.scale[0]), epsilon, gamma.size, reciprocal_bits=bits
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
