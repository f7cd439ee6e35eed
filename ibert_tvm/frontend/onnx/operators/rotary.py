"""Translations of RotaryEmbedding, ONNX's and that of ONNX Runtime (com.microsoft)."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm.relax import op

from ..translator import ORT, Node, Translator, operator
from ..values import Known, Operand, Traced, Untranslatable
from .layout import look_up, reshape, split


@operator("RotaryEmbedding")
def _rotary(t: Translator, node: Node) -> Traced:
    x, cos, sin = node.traced(0), node.operand(1), node.operand(2)
    return turned(t, node, x, node.operand(3), (cos, sin), **_attributes(node, x, cos))


@operator("RotaryEmbedding", domain=ORT)
def _ort_rotary(t: Translator, node: Node) -> Traced:
    x, places = node.traced(0), node.operand(1)
    if float(node.attributes.get("scale", 1.0)) != 1.0 or node.attributes.get("is_packed_batching"):
        raise Untranslatable("it scales its result, or takes sequences without padding")
    if isinstance(places, Known) and places.array.size == 1:  # the first position
        length = x.shape[1 if len(x.shape) == 3 else 2]
        places = Known(int(places.array.reshape(-1)[0]) + np.arange(length)[None])
    cos = node.operand(2)
    tables = (cos, node.operand(3))
    return turned(t, node, x, places, tables, **_attributes(node, x, cos))


def _attributes(node: Node, x: Traced, cos: Operand | None) -> dict[str, Any]:
    """Channels of a head where all are in one axis, and which of them are pairs."""
    heads = int(node.attributes.get("num_heads", 0))
    width = x.shape[-1] // heads if heads else 2 * _angles(cos)
    return {"width": width, "interleaved": bool(node.attributes.get("interleaved", 0))}


def _angles(table: Operand | None) -> int:
    if table is None:
        raise Untranslatable("it has no cosines, or no sines")
    return table.shape[-1]


def turned(
    t: Translator,
    node: Node,
    x: Traced,
    places: Operand | None,
    tables: tuple[Operand | None, Operand | None],
    *,
    width: int,
    interleaved: bool,
) -> Traced:
    """Turn the channels of each head by rows of two tables.

    Parameters
    ----------
    t
        The graph.
    node
        Which rotates.
    x
        [batch, tokens, heads * width] or [batch, heads, tokens, width].
    places
        Rows of the tables, [batch or 1, tokens]; where they are left out, the tables have a row for
        each token.
    tables
        Cosines and sines, [positions, angles]; twice as many channels of a head are turned.
    width
        Channels of a head.
    interleaved
        Whether neighbours are turned together, and not halves.

    Returns
    -------
    Traced
        As x.

    Raises
    ------
    Untranslatable
        If a table is missing, or turns more channels than heads have.
    """
    shape = x.shape
    cos, sin = tables
    if cos is None or sin is None:
        raise Untranslatable("it has no cosines, or no sines")
    angles = _angles(cos)
    flat = len(shape) == 3
    if flat:
        x = reshape(t, x, [*shape[:2], -1, width])
    rows = [_rows(t, node, table, places) for table in (cos, sin)]
    # Heads are the axis behind the tokens, or the one in front of them.
    c, s = (t.emit(op.expand_dims(row.var, [2 if flat else 1]), row) for row in rows)
    count, rest = 2 * angles, x.shape[3] - 2 * angles
    if rest < 0:
        raise Untranslatable(f"it turns {count} channels of heads of {x.shape[3]}")
    first, *others = split(t, x, [count, rest], 3) if rest else [x]
    if interleaved:
        a, b = (
            t.emit(op.strided_slice(first.var, [3], [begin], [count], [2]), first)
            for begin in (0, 1)
        )
    else:
        a, b = split(t, first, [angles, angles], 3)

    def product(left: Traced, right: Traced) -> Traced:
        return t.emit(op.multiply(left.var, right.var), left, right)

    ac, bs, bc, as_ = product(a, c), product(b, s), product(b, c), product(a, s)
    y = t.emit(op.subtract(ac.var, bs.var), ac, bs)
    z = t.emit(op.add(bc.var, as_.var), bc, as_)
    if interleaved:
        y, z = (t.emit(op.expand_dims(half.var, [4]), half) for half in (y, z))
        pairs = t.emit(op.concat([y.var, z.var], 4), y, z)
        whole = reshape(t, pairs, list(first.shape))
    else:
        whole = t.emit(op.concat([y.var, z.var], 3), y, z)
    if others:
        whole = t.emit(op.concat([whole.var, *(part.var for part in others)], 3), whole, *others)
    return reshape(t, whole, list(shape)) if flat else whole


def _rows(t: Translator, node: Node, table: Operand, places: Operand | None) -> Traced:
    """Cosines or sines for each token, [batch or 1, tokens, angles]."""
    if places is not None and isinstance(table, Known):
        return look_up(t, node, table, places)
    if places is not None or not isinstance(table, Traced) or len(table.shape) != 3:
        raise Untranslatable("its cosines and sines are neither a table nor computed by token")
    return table
