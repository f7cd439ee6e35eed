"""Lowering of norms of rows."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from tvm import relax

from ... import integer
from ...canonical.operators.norms import L2Norm, LayerNorm, RmsNorm
from ...quantization_table import ActivationQuant
from ...spec import layer_norm as wide
from ...spec.layer_norm import LayerNormAffine, LayerNormConstants
from ...spec.nearest_scale import finest_scale
from ...spec.presets import Preset
from ...spec.short_layer_norm import INPUT_LIMIT, ShortLayerNorm
from ..forms import Form, storage
from ..rule import PLAIN, SCALAR, STREAM, Need, Node, lowers
from ..value import IntegerValue

_UNIT_BITS = 15
_UNIT_HIGH = 2**_UNIT_BITS - 1
# What calibration saw next to nothing of still gets a range, in which epsilon has less than 40
# bits.
_SMALLEST = 2.0**-6


def short_rows(largest: float) -> ActivationQuant:
    """Quantise rows in 15 bits, which the norm takes without products of 64 bits."""
    return ActivationQuant(max(largest, _SMALLEST) / INPUT_LIMIT, -INPUT_LIMIT, INPUT_LIMIT)


def fits_short(source: Form, rows: ActivationQuant | None) -> bool:
    """Tell whether a norm of 15 bits, which clamps its operand, loses nothing of it.

    Parameters
    ----------
    source
        The operand.
    rows
        What the table has for it, if its rows are heads: a requantisation may leave the clamp to
        its reader.
    """
    magnitude = source.magnitude
    if rows is not None and rows.scale == source.scale[0]:
        magnitude = min(magnitude, max(-rows.low, rows.high))
    return magnitude <= INPUT_LIMIT


def _need(preset: Preset, call: relax.Call | None) -> Need:
    """One scale; of heads, which matrix products yield, rows of 15 bits where there is such a form.

    Rows that are tokens are sums, as a rule, and come as such.
    """
    need = Need(operands=(SCALAR,), result=(STREAM,), plain=True)
    if call is None:
        return need
    shape, epsilon = call.args[1].ty.shape.values, float(call.attrs["epsilon"])

    def finest(_bias: float) -> float:
        return finest_scale(
            lambda scale: LayerNormConstants.from_scale(scale, epsilon, int(shape[-1]))
        )

    need, by_head = replace(need, finest=finest), len(shape) > 1
    return replace(need, stream_for=short_rows) if by_head and preset.short else need


@lowers(LayerNorm, RmsNorm, need=_need)
def norm(node: Node[LayerNorm | RmsNorm]) -> IntegerValue:
    """LayerNorm, or RMSNorm without mean and beta, with an exact integer square root.

    Expects x with one scale and no zero point (a sum as it is, anything else in stream form).
    Emits ``integer.layer_norm`` (specification: `i-layer-norm`). The input's scale only enters
    epsilon; gamma, sqrt(C) and the output's scale are folded in the gain, beta in the offset. x is
    clamped to 21 bits; the result is the stream form, int16 unless its entry says otherwise. An
    input of 15 bits takes ``integer.layer_norm_short`` where the preset allows it::

        y = layer_norm(x, gamma, beta)  →  y = integer.layer_norm(x_s32, gain_s32, offset_s32)
    """
    source, quant = node.x.scalar(), node.entry("stream")
    gamma, *beta = (node.weight(position) for position in range(1, len(node.call.args)))
    rows = node.context.table.stream.get(node.x.name) if gamma.ndim > 1 else None
    short = node.preset.short and fits_short(source, rows) and quant.high < 2**15
    affine = LayerNormAffine.from_scale(gamma, beta[0] if beta else 0 * gamma, quant.scale)
    constants = [node.in_place_of(1, affine.gain)]
    if beta:
        # The short form rounds n down: half a unit of it.
        offset = affine.offset + (affine.gain >> 1) if short else affine.offset
        constants.append(node.in_place_of(2, offset))
    return _normalised(node, source, quant, constants, node.operator.epsilon, affine.shift, short)


@lowers(L2Norm, need=PLAIN)
def unit_length(node: Node[L2Norm]) -> IntegerValue:
    """Rows scaled to length 1: an RMSNorm whose gamma is ``1 / sqrt(C)``.

    Expects x with one scale and no zero point. Emits what `norm` does, int16 at the fixed scale
    2^-15: no entry is larger than 1, whatever the data, so nothing is calibrated and vectors of
    different models compare. The least epsilon that the operators have leaves a row of zeros what
    it is::

        y = l2_norm(x)  →  y = integer.rms_norm(x_s32, gain_s32)                         # 2^-15
    """
    # A mean has more fraction bits than the operator takes, which would be clipped.
    source = node.x.within(node.x.scalar(), wide.INPUT_LIMIT, node.name)
    quant = ActivationQuant(2.0**-_UNIT_BITS, -_UNIT_HIGH, _UNIT_HIGH)
    channels = int(source.var.ty.shape.values[-1])
    gamma = np.full(channels, 1 / math.sqrt(channels))
    affine = LayerNormAffine.from_scale(gamma, np.zeros(channels), quant.scale)
    constants = [node.parameter("gain", affine.gain)]
    short = node.preset.short and fits_short(source, None)
    return _normalised(node, source, quant, constants, 0.0, affine.shift, short)


def _normalised(
    node: Node[LayerNorm | RmsNorm | L2Norm],
    source: Form,
    quant: ActivationQuant,
    affine: list[relax.Var],
    epsilon: float,
    shift: int,
    short: bool,
) -> IntegerValue:
    """Emit the norm with a gain, and with an offset if there is one."""
    scale, width = float(source.scale[0]), int(affine[0].ty.shape.values[-1])
    constants: ShortLayerNorm | LayerNormConstants
    if short:
        build = integer.layer_norm_short if len(affine) > 1 else integer.rms_norm_short
        constants = ShortLayerNorm.from_scale(scale, epsilon, width)
    else:
        build = integer.layer_norm if len(affine) > 1 else integer.rms_norm
        bits = node.preset.reciprocal_bits
        constants = LayerNormConstants.from_scale(scale, epsilon, width, reciprocal_bits=bits)
    stored = {"low": quant.low, "high": quant.high, "dtype": storage(quant)}
    call = build(source.var, *affine, constants, name=node.name, shift=shift, **stored)
    return node.value(Form.of(node.context.emit(call), node.name, quant))
