"""Translations of RotaryEmbedding, ONNX's and that of ONNX Runtime (com.microsoft)."""

from __future__ import annotations

import numpy as np
from tvm.relax import op

from .operators_layout import look_up, reshape, split
from .translator import Node, Translator, operator
from .values import Known, Traced, Untranslatable


@operator("RotaryEmbedding")
def _rotary(t: Translator, node: Node) -> Traced:
    x, cos, sin = node.traced(0), node.operand(1), node.operand(2)
    return _turned(t, node, x, node.operand(3), (cos, sin))


@operator("RotaryEmbedding", domain="com.microsoft")
def _ort_rotary(t: Translator, node: Node) -> Traced:
    x, places = node.traced(0), node.operand(1)
    if float(node.attributes.get("scale", 1.0)) != 1.0 or node.attributes.get("is_packed_batching"):
        raise Untranslatable("it scales its result, or takes sequences without padding")
    if isinstance(places, Known) and places.array.size == 1:  # the first position
        length = x.shape[1 if len(x.shape) == 3 else 2]
        places = Known(int(places.array.reshape(-1)[0]) + np.arange(length)[None])
    return _turned(t, node, x, places, (node.operand(2), node.operand(3)))


def _turned(
    t: Translator,
    node: Node,
    x: Traced,
    places: Known | Traced | None,
    tables: tuple[Known | Traced | None, Known | Traced | None],
) -> Traced:
    """Turn the channels of each head by rows of two tables."""
    attributes, shape = node.attributes, x.shape
    cos, sin = tables
    if cos is None or sin is None:
        raise Untranslatable("it has no cosines, or no sines")
    angles = int((cos.array if isinstance(cos, Known) else cos).shape[-1])
    flat = len(shape) == 3
    if flat:
        width = int(attributes.get("num_heads", 0))
        width = shape[2] // width if width else 2 * angles
        x = reshape(t, x, [*shape[:2], -1, width])
    rows = [_rows(t, node, table, places) for table in (cos, sin)]
    # Heads are the axis behind the tokens, or the one in front of them.
    c, s = (t.emit(op.expand_dims(row.var, [2 if flat else 1]), row) for row in rows)
    turned, rest = 2 * angles, x.shape[3] - 2 * angles
    if rest < 0:
        raise Untranslatable(f"it turns {turned} channels of heads of {x.shape[3]}")
    first, *others = split(t, x, [turned, rest], 3) if rest else [x]
    if attributes.get("interleaved", 0):
        a, b = (
            t.emit(op.strided_slice(first.var, [3], [begin], [turned], [2]), first)
            for begin in (0, 1)
        )
    else:
        a, b = split(t, first, [angles, angles], 3)

    def product(left: Traced, right: Traced) -> Traced:
        return t.emit(op.multiply(left.var, right.var), left, right)

    ac, bs, bc, as_ = product(a, c), product(b, s), product(b, c), product(a, s)
    y = t.emit(op.subtract(ac.var, bs.var), ac, bs)
    z = t.emit(op.add(bc.var, as_.var), bc, as_)
    if attributes.get("interleaved", 0):
        y, z = (t.emit(op.expand_dims(half.var, [4]), half) for half in (y, z))
        pairs = t.emit(op.concat([y.var, z.var], 4), y, z)
        whole = reshape(t, pairs, list(first.shape))
    else:
        whole = t.emit(op.concat([y.var, z.var], 3), y, z)
    if others:
        whole = t.emit(op.concat([whole.var, *(part.var for part in others)], 3), whole, *others)
    return reshape(t, whole, list(shape)) if flat else whole


def _rows(
    t: Translator, node: Node, table: Known | Traced, places: Known | Traced | None
) -> Traced:
    """Cosines or sines for each token, [batch or 1, tokens, angles]."""
    if places is not None and isinstance(table, Known):
        return look_up(t, node, table, places)
    if places is not None or not isinstance(table, Traced) or len(table.shape) != 3:
        raise Untranslatable("its cosines and sines are neither a table nor computed by token")
    return table
