"""Lowering of operators on tokens: looked up, masked, prepended, cut out and moved."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ... import integer
from ...canonical.operators.tokens import (
    Embedding,
    MaskTokens,
    PrependTokens,
    ShiftTokens,
    SliceTokens,
    UnfoldTokens,
)
from ...quantization_table import ActivationQuant
from ..forms import Form, multipliers
from ..rule import PLAIN, Need, Node, lowers
from ..value import IntegerValue
from .sums import LEARNED_ROWS, join_rows


@lowers(Embedding, need=Need(plain=True, readable=False))
def embedding(node: Node[Embedding]) -> IntegerValue:
    """Row lookup in an int8 table, requantised by the row's own multiplier.

    Expects a table of int8 or int16 rows with one scale each (`QuantizationTable.embeddings`).
    Emits ``integer.embedding`` (specification: `requantise`), once per consumer's scale, because
    the requantisation to that scale is part of it: a sum of embeddings needs no further operator.
    The result is int32, bounded by the largest row at the target scale; it is not clamped::

        w = embedding(table, ids)          w = integer.embedding(ids, table, multiplier_s32[V])
        y = add(w, p)                  →   y = integer.add(w, p)
    """
    context, ids = node.context, node.operands[1]
    rows = context.table_weight("embeddings", node.name)
    fine = rows.values.dtype == np.int16
    largest, bits = (int(np.abs(rows.values).max()), 16) if fine else (128, 8)

    def rescale(quant: ActivationQuant, result: str) -> Form:
        factors = rows.scale / quant.scale
        # More bits than the table itself is good for would cost a product in int64.
        dyadic = context.guard(node.name, lambda: multipliers(factors, largest, bits))
        call = integer.embedding(
            ids,
            node.in_place_of(0, rows.values),
            context.parameter(f"{result}.multiplier", dyadic.multipliers),
            name=result,
            shift=dyadic.shift,
        )
        magnitude = int(abs(dyadic.values).max() * largest) + 1
        return Form(context.emit(call), result, quant.channel_scale, 0, magnitude)

    return IntegerValue(
        context, node.name, lambda: rescale(node.entry("stream"), node.name), rescale
    )


@lowers(PrependTokens, need=LEARNED_ROWS)
def prepend_tokens(node: Node[PrependTokens]) -> IntegerValue:
    """Learned tokens before every sequence: class and distillation tokens.

    int32::

        y = prepend_tokens(x, t)  →  r = integer.requantise(x, m)
                                     y = integer.prepend_tokens(r, t_s32)            # S_y
    """
    return join_rows(node, max)


@lowers(MaskTokens, ShiftTokens, SliceTokens, UnfoldTokens, need=PLAIN)
def keep_entries(node: Node[MaskTokens | ShiftTokens | SliceTokens | UnfoldTokens]) -> IntegerValue:
    """Entries at other places, or 0 where there is none.

    Reads a form without a zero point, so that 0 is 0, and keeps its type and scale::

        y = shift_tokens(x)  →  y = integer.shift_tokens(x)
    """
    source = node.x.scalar()
    out = node.emit(source.var, *node.operands[1:])
    return node.value(replace(source, var=out, value=node.name))
