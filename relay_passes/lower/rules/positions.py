"""Lowering of what depends on the places of tokens."""

from __future__ import annotations

import numpy as np
from tvm import relax

from ...canonical.operators.positions import PositionIds, Rotate
from ...errors import LoweringError
from ...spec.rotation import FRACTION_BITS, rotation_table
from ...spec.short_requantise import short_factors
from ..forms import Form, stored
from ..rule import FACTOR, MATMUL, Need, Node, lowers
from ..value import IntegerValue


@lowers(PositionIds, need=Need())
def position_ids(node: Node[PositionIds]) -> relax.Var:
    """Positions are integers already: the same operator with an int32 result."""
    return node.emit(*node.operands)


@lowers(Rotate, need=Need(operands=(FACTOR,), result=(MATMUL,)))
def rotate(node: Node[Rotate]) -> IntegerValue:
    """Rotary position embeddings of queries or keys, in every preset.

    Expects x as int8 with one scale, so that pairs of channels are turned as they are. Emits
    ``integer.rotate`` (specification: `rotation`). The table is rounded to Q15, its amplitude goes
    to the multiplier: layers with equal angles share it. The native form is the one of 8 bits that
    attention reads::

        y = rotate(x, t)  →  y = integer.rotate(x_s8, t_s16, m_s16)                      # S_y
    """
    x, quant = node.x.matmul(), node.entry("matmul")
    if x.zero_point != 0 or not x.per_tensor or str(x.var.ty.dtype) != "int8":
        raise LoweringError(
            f"what is rotated is {x.var.ty.dtype} with zero point {x.zero_point} and "
            f"{x.scale.size} scales",
            where=node.name,
            why="a rotation mixes channels, which must have one scale and a zero of 0",
            todo="quantise queries and keys symmetrically, with one scale each",
        )
    table = rotation_table(node.weight(1))
    channels, columns = int(x.var.ty.shape.values[-1]), table.entries.shape[1]
    turned = np.arange(channels) % (channels // node.operator.num_heads) < columns
    amplitude = np.where(turned, table.amplitude, 1.0) if not turned.all() else table.amplitude
    reals = x.scale * amplitude / quant.channel_scale / 2.0**FRACTION_BITS
    factors = short_factors(reals, 2**15 - 1, quant.low, quant.high, quant.zero_point)
    out = node.emit(
        x.var,
        node.in_place_of(1, table.entries),
        node.parameter("multiplier", factors.multipliers),
        raised=FRACTION_BITS,
        shift=factors.shift,
        **stored(quant),
    )
    return node.value(Form.of(out, node.name, quant))
