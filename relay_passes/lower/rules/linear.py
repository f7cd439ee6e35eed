"""Lowering of dense layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ...canonical.operators.linear import Linear
from ...dialect.arrays import Reals
from ...errors import LoweringError, RangeError
from ...integer.intervals import check_accumulator
from ...quantization_table import ActivationQuant, WeightQuant
from ..forms import Form
from ..rule import MATMUL, Need, Node, lowers
from ..value import IntegerValue, product_shift, restored_sums

LINEAR = Need(operands=(MATMUL,))
"""The 8-bit form is read; the accumulator needs no entry of its own."""
Bias = Callable[[str, NDArray[np.floating], ActivationQuant, WeightQuant], NDArray[np.int64]]
"""Rounds a bias to units of the accumulator, with the input's zero point folded in; int64 [N].

Takes the layer's name, the bias, the input's 8-bit form and the matrix."""


@lowers(Linear, need=LINEAR)
def linear(node: Node[Linear]) -> IntegerValue:
    """``x W^T + b`` on 8-bit operands, accumulated in int32.

    Expects x in its matmul form (int8, or uint8 with a zero point) and W as int8 rows. Emits
    ``integer.linear``. The accumulator has one scale per output channel, ``S_x S_w[n]``; a zero
    point z of x is folded in the bias, ``round(b / (S_x S_w[n])) - z sum_k w[n, k]``, and x's
    channel divisors are in the weights already. Of a table that is `centred`, the bias also takes
    what rounding adds to x in the mean. What the table takes off x (`QuantizationTable.offsets`)
    is multiplied by the float weights, or by trained integers, and added to the bias; what it takes
    off y comes off the bias. The bound of every channel is computed from its weights and must fit
    int32::

        y = linear(x, W, b)  →  y = integer.linear(x_8, W_s8, bias_s32)      # S_x * S_w[n]

    Of an x with a scale per row the magnitude of the row multiplies the sums before the bias::

        y = linear(x, W, b)  →  a = integer.linear(x_8, W_s8, 0)
                                y = integer.scale_rows(a, m, bias_s32, p)    # S_x S_w[n] 2^p / 127
    """
    return node.value(accumulator(node, bias_steps))


def accumulator(node: Node[Linear], bias_integers: Bias) -> Form:
    """Emit the product, and return the form of its int32 accumulator.

    Raises
    ------
    LoweringError
        If the table's matrix is of another model.
    RangeError
        If an accumulator may overflow, or the bias does not fit.
    """
    context, name = node.context, node.name
    quant = context.table_entry("matmul", node.x.name)
    rows = context.table_weight("weights", name)
    weight, bias = (str(argument.name) for argument in node.call.args[1:])
    outputs, channels = (int(extent) for extent in node.call.args[1].ty.shape.values)
    expected = outputs, channels if quant.splits is None else int(quant.splits.sum())
    if rows.values.shape != expected:
        raise LoweringError(
            f"the quantised weight has shape {rows.values.shape}",
            where=name,
            why=f"{weight} of the model has shape {expected}",
            todo="use the quantisation table that was made for this model",
        )
    source = node.x.operand()
    floats = node.weight(2)
    taken = context.table.offsets.get(name)
    if taken is not None:
        floats = floats - taken
    if source.offset is not None:
        floats = floats + _multiplied(node, rows, quant) @ source.offset
    if source.row_magnitude is not None:
        unit, shift = float(source.scale[0]), product_shift(rows.values.shape[1])
        restored = ActivationQuant(unit * 2.0**shift, -source.magnitude, source.magnitude)
        nothing = np.zeros(outputs, np.int64)
        sums = _product(node, source, rows, nothing, f"{name}.offset", unit * rows.scale)
        integers = bias_integers(name, floats, restored, rows)
        form = restored_sums(context, sums, source.row_magnitude, shift, integers, bias)
    else:
        scale = quant.scale * rows.scale
        if context.table.centred:
            # Of a channel that is split, one column is rounded; the others are at an end of their
            # range.
            excess = np.broadcast_to(source.excess, rows.values.shape[1:])[:channels]
            floats = floats - scale * (rows.values[:, :channels] @ excess)
            context.record_excess(node.x.name, source, excess)
        integers = bias_integers(name, floats, quant, rows)
        parameter = bias if np.all(quant.zero_points == 0) else f"{bias}.compensated"
        form = _product(node, source, rows, integers, parameter, scale)
    # Of what something is taken off, only a reader that makes up for it may take the integers.
    return form if taken is None else replace(form, offset=taken, readable=False)


def _multiplied(
    node: Node[Linear], rows: WeightQuant, quant: ActivationQuant
) -> NDArray[np.floating]:
    """Weights that a constant part of x is multiplied by, [N, K]."""
    if not rows.trained:
        return node.weight(1)
    weight = rows.values * rows.scale[:, None]
    return weight if quant.channel_divisor is None else weight / quant.channel_divisor


def _product(
    node: Node[Linear],
    source: Form,
    rows: WeightQuant,
    bias: NDArray[np.int64],
    parameter: str,
    scale: Reals,
) -> Form:
    """Emit ``integer.linear``, whose bias is called `parameter`, if no accumulator can overflow."""
    magnitude = check_accumulator(rows.values, bias, -source.magnitude, source.magnitude)
    weight = node.in_place_of(1, rows.values)
    constant = node.context.parameter(parameter, bias.astype(np.int32))
    return Form(node.emit(source.var, weight, constant), node.name, scale, 0, magnitude)


def bias_steps(
    name: str, bias: NDArray[np.floating], quant: ActivationQuant, rows: WeightQuant
) -> NDArray[np.int64]:
    """Bias in units of the accumulator, with the input's zero point folded in; int64 [N].

    A channel has one zero point, however many columns it is split into.
    """
    steps = np.asarray(bias, dtype=np.float64) / (quant.scale * rows.scale)
    if not np.isfinite(steps).all():
        channel = int(np.flatnonzero(~np.isfinite(steps))[0])
        raise RangeError(
            f"the bias of channel {channel} is {bias[channel]}",
            where=name,
            why="a weight of the model is infinite or not a number",
            todo="check the checkpoint",
        )
    integers = np.floor(steps + 0.5).astype(np.int64)
    if np.any(quant.zero_points):
        channels = None if quant.splits is None else quant.splits.size
        integers -= (rows.values[:, :channels].astype(np.int64) * quant.zero_points).sum(axis=1)
    return integers
