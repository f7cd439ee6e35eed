"""Emission of `integer.attention`: QK^T, masked i-softmax, PV and requantisation as one kernel.

The kernel works on operands laid out for the target's dot-product instruction. Rows, columns and
depth are padded to whole tiles inside the kernel; padded keys count as masked, padded rows are
never stored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import te, tirx

from ..integer.attrs import AttentionAttrs
from ..spec import short_softmax, softmax
from ..spec.short_requantise import requantise_short
from ..spec.values import Condition, Ranged, known, not_equal
from .context import KernelContext
from .elementwise import per_channel
from .stage import Stage, define

_UNSIGNED_OFFSET = 128

Keep = Callable[[Any, Any], Condition]
"""``keep(batch, token)``: whether a key takes part."""


def _sum(
    name: str,
    shape: tuple[int, ...],
    extent: int,
    entry: Any,
    bounds: tuple[int, int],
) -> Stage:
    """Sum of `entry(*index, k)` (an int32 expression) over k < extent."""
    k = te.reduce_axis((0, extent), name="k")
    tensor = te.compute(shape, lambda *index: te.sum(entry(*index, k), axis=k), name=name)
    return Stage(tensor, min(bounds[0] * extent, 0), max(bounds[1] * extent, 0))


def _int32(stage: Stage, *index: Any) -> tirx.Expr:
    return stage.tensor(*index).astype("int32")


def emit_attention(
    context: KernelContext,
    attrs: AttentionAttrs,
    q: Stage,
    k: Stage,
    v: Stage,
    *last: Stage,
) -> Stage:
    """Emit the kernel; see the module's text.

    Parameters
    ----------
    context
        The kernel being emitted.
    attrs
        Attributes of the operator.
    q, k, v
        [tokens, heads * head_dim] int8.
    last
        The mask [batch, seq_len], where 0 marks padding, unless there is none; the multiplier,
        [1] or [heads * head_dim].

    Returns
    -------
    Stage
        [batch, seq_len, heads, head_dim] of the requested type; the finished kernel stores it as
        [tokens, heads * head_dim], which is the same memory.
    """
    shape = _Shape(context, attrs.num_heads, q.shape[1], *last[2:])
    context.attributes["ibert.row_tile"] = shape.tile
    *mask, multiplier = last[:2]
    keep = _kept(shape, mask[0]) if mask else _inside(shape)
    short = attrs.softmax == "short"
    context_of = (_short if short else _normalised)(shape, attrs, q, k, v, keep)

    head_dim, seq_len = shape.head_dim, shape.seq_len
    requantised = attrs.shift, attrs.zero_point, attrs.low, attrs.high

    def entry(batch: Any, head: Any, row: Any, column: Any) -> Ranged:
        inside = column if shape.columns == head_dim else tirx.min(column, head_dim - 1)
        value = context_of(batch, head, row, column)
        factor = per_channel(multiplier, head * head_dim + inside)
        if short:
            return requantise_short(value, factor, 0, *requantised)
        return softmax.output_of(value, factor, *requantised)

    padded = define(
        "attended_rows", (shape.batch, shape.heads, shape.rows, shape.columns), entry, attrs.dtype
    )
    context.merged_output = True
    return define(
        "attended",
        (shape.batch, seq_len, shape.heads, head_dim),
        lambda batch, row, head, column: padded[batch, head, row, column],
        attrs.dtype,
    )


class _Shape:
    """Sizes of the kernel, true and padded."""

    def __init__(
        self, context: KernelContext, heads: int, channels: int, starts: Stage | None = None
    ) -> None:
        self.starts = starts
        self.layout = context.layout
        self.batch, self.seq_len, self.heads = context.batch, context.seq_len, heads
        self.head_dim = channels // heads
        self.tile, self.rows = self.layout.row_tile(self.seq_len)
        self.keys = self.layout.padded_columns(self.seq_len)
        self.depth = self.layout.padded_depth(self.head_dim)
        self.columns = self.layout.padded_columns(self.head_dim)

    def query_row(self, batch: Any, token: Any) -> tirx.Expr:
        """Row of a token; that of another one for a token behind the last."""
        if self.starts is None:
            return batch * self.seq_len + tirx.min(token, self.seq_len - 1)
        last = tirx.const(self.batch * self.seq_len - 1, "int32")
        return tirx.min(self.starts.tensor(batch) + token, last)

    def first_key(self, batch: Any) -> tirx.Expr:
        """Row of key 0. Packed, keys are as many rows as ever that hold those of the sequence."""
        if self.starts is None or self.batch == 1:
            return batch * self.seq_len
        last = tirx.const((self.batch - 1) * self.seq_len, "int32")
        return tirx.min(self.starts.tensor(batch), last)


def _kept(shape: _Shape, mask: Stage) -> Keep:
    """Whether a key is a real token, no padding of the caller's or of the tile's."""

    def entry(batch: tirx.Var, key: tirx.Var) -> Ranged:
        inside = key < shape.seq_len
        token = tirx.min(key, shape.seq_len - 1)
        value = mask.tensor(batch, token) != 0
        if shape.starts is not None:
            row = shape.first_key(batch) + token
            first, end = shape.starts.tensor(batch), shape.starts.tensor(batch + 1)
            inside = tirx.all(inside, row >= first, row < end)
            value = mask.tensor(row // shape.seq_len, row % shape.seq_len) != 0
        flag = tirx.if_then_else(inside, value.astype("int32"), tirx.const(0, "int32"))
        return Ranged(0, 1, flag)

    valid = define("valid", (shape.batch, shape.keys), entry, "int32")
    return lambda batch, token: not_equal(valid[batch, token], 0)


def _inside(shape: _Shape) -> Keep:
    """Whether a key is inside of the sequence: all that is asked where nothing is masked."""
    if shape.keys == shape.seq_len:
        return lambda batch, token: Condition(tirx.const(1, "bool"))
    return lambda batch, token: Condition(tirx.all(token < shape.seq_len))


@dataclass(frozen=True)
class _Products:
    """QK^T of the operands as the instruction takes them.

    Attributes
    ----------
    products
        [batch, heads, rows, keys] int32.
    compensation
        ``compensation(batch, head, key)``: what to add for the offset that queries carry; None
        where they carry none.
    limit
        Bound of the absolute score.
    """

    products: Stage
    compensation: Callable[..., Ranged] | None
    limit: int


def _products(shape: _Shape, q: Stage, k: Stage) -> _Products:
    layout = shape.layout
    offset = _UNSIGNED_OFFSET if layout.lhs_dtype == "uint8" else 0
    seq_len, head_dim = shape.seq_len, shape.head_dim

    def query(batch: Any, head: Any, row: Any, column: Any) -> tirx.Expr:
        channel = head * head_dim + tirx.min(column, head_dim - 1)
        value = q.tensor(shape.query_row(batch, row), channel).astype("int32")
        return (value + offset).astype(layout.lhs_dtype)

    q_operand = Stage(
        te.compute((shape.batch, shape.heads, shape.rows, shape.depth), query, name="q_operand"),
        q.low + offset,
        q.high + offset,
    )
    k_packed, packed = _pack("k_packed", shape, k, tokens_are_columns=True)

    corners = [
        a * b for a in (q_operand.low, q_operand.high) for b in (k_packed.low, k_packed.high)
    ]
    products = _sum(
        "score_products",
        (shape.batch, shape.heads, shape.rows, shape.keys),
        shape.depth,
        lambda b, h, i, j, d: _int32(q_operand, b, h, i, d) * packed(b, h, j, d),
        (min(corners), max(corners)),
    )
    # |q k| summed over the head: what the scores can be, whatever offset the operands carry.
    limit = max(abs(q.low), abs(q.high)) * max(abs(k.low), abs(k.high)) * head_dim
    if offset:
        # The sum of a key's channels as the product with a row of ones: the instruction does it.
        ones = te.compute((1, shape.depth), lambda *_: tirx.const(1, layout.lhs_dtype), name="ones")
        k_sum = _sum(
            "k_sum",
            (shape.batch, shape.heads, 1, shape.keys),
            shape.depth,
            lambda b, h, i, j, d: ones(i, d).astype("int32") * packed(b, h, j, d),
            (k_packed.low, k_packed.high),
        )

    compensation = (lambda b, h, j: k_sum[b, h, 0, j] * -offset) if offset else None
    return _Products(products, compensation, limit)


def _pack(
    name: str, shape: _Shape, x: Stage, tokens_are_columns: bool
) -> tuple[Stage, Callable[..., tirx.Expr]]:
    """Lay K or V out for the instruction, zero where tiles reach beyond the true sizes.

    Parameters
    ----------
    name
        Block name.
    shape
        Sizes.
    x
        [tokens, heads * head_dim] int8.
    tokens_are_columns
        Whether the product's columns are tokens and its depth the head's channels (K), or the
        other way round (V).

    Returns
    -------
    Stage, callable
        The packed operand, and ``entry(batch, head, column, depth)`` that reads it as int32.
    """
    layout = shape.layout
    lanes, step = layout.lanes, layout.depth
    seq_len, head_dim = shape.seq_len, shape.head_dim
    sizes = (shape.keys, shape.depth) if tokens_are_columns else (shape.columns, shape.keys)

    def entry(batch: Any, head: Any, block: Any, chunk: Any, lane: Any, inner: Any) -> tirx.Expr:
        column, depth = block * lanes + lane, chunk * step + inner
        token, channel = (column, depth) if tokens_are_columns else (depth, column)
        inside = tirx.all(token < seq_len, channel < head_dim)
        value = x.tensor(
            shape.first_key(batch) + tirx.min(token, seq_len - 1),
            head * head_dim + tirx.min(channel, head_dim - 1),
        )
        return tirx.if_then_else(inside, value, tirx.const(0, "int8"))

    packed = te.compute((shape.batch, shape.heads, *layout.packed_shape(*sizes)), entry, name=name)
    stage = Stage(packed, min(x.low, 0), max(x.high, 0))

    def read(batch: Any, head: Any, column: Any, depth: Any) -> tirx.Expr:
        return _int32(
            stage, batch, head, column // lanes, depth // step, column % lanes, depth % step
        )

    return stage, read


def _scores(shape: _Shape, q: Stage, k: Stage, keep: Keep) -> Stage:
    """Masked accumulators of QK^T, [batch, heads, rows, keys] int32."""
    product = _products(shape, q, k)

    def score(batch: Any, head: Any, row: Any, token: Any) -> Ranged:
        value = product.products[batch, head, row, token]
        if product.compensation is not None:
            value = value + product.compensation(batch, head, token)
        exact = known(value, -product.limit, product.limit)
        return softmax.masked_score(exact, keep(batch, token))

    return define("scores", (shape.batch, shape.heads, shape.rows, shape.keys), score, "int32")


def _short_scores(shape: _Shape, q: Stage, k: Stage, keep: Keep) -> Stage:
    """Scores of the short softmax: one addition per entry compensates and masks."""
    product = _products(shape, q, k)

    def offset(batch: Any, head: Any, key: Any) -> Ranged:
        masked = short_softmax.key_offset(keep(batch, key))
        if product.compensation is None:
            return masked
        return masked + product.compensation(batch, head, key)

    offsets = define("key_offset", (shape.batch, shape.heads, shape.keys), offset, "int32")

    def score(batch: Any, head: Any, row: Any, key: Any) -> Ranged:
        acc = product.products[batch, head, row, key]
        return short_softmax.score_of(acc, offsets[batch, head, key])

    return define("scores", (shape.batch, shape.heads, shape.rows, shape.keys), score, "int32")


def _row_max(shape: _Shape, scores: Stage) -> Stage:
    j = te.reduce_axis((0, shape.keys), name="j")
    tensor = te.compute(
        (shape.batch, shape.heads, shape.rows),
        lambda b, h, i: te.max(scores.tensor(b, h, i, j), axis=j),
        name="row_max",
    )
    return Stage(tensor, scores.low, scores.high)


def _short(
    shape: _Shape, attrs: AttentionAttrs, q: Stage, k: Stage, v: Stage, keep: Keep
) -> Callable[..., Ranged]:
    """u8 exponentials times V, divided by the row's sum once per entry of the context."""
    scores = _short_scores(shape, q, k, keep)
    row_max = _row_max(shape, scores)
    dtype, offset = _byte_operand(shape)
    dims = (shape.batch, shape.heads, shape.rows)
    largest = attrs.exponential.maximum

    def entry(batch: Any, head: Any, row: Any, key: Any) -> Ranged:
        top = short_softmax.row_floor(row_max[batch, head, row])
        e = short_softmax.exponential_of(scores[batch, head, row, key], top, attrs.exponential)
        return e + offset if offset else e

    weights = define("exponential", (*dims, shape.keys), entry, dtype)
    total = _sum(
        "row_sum",
        dims,
        shape.keys,
        lambda b, h, i, j: _int32(weights, b, h, i, j) - offset,
        (0, largest),
    )
    bits = define(
        "row_bits",
        dims,
        lambda *index: short_softmax.sum_bits(total[index], largest * shape.seq_len),
        "int32",
    )
    factor = define(
        "row_factor",
        dims,
        lambda *index: short_softmax.reciprocal(total[index], bits[index]),
        "int32",
    )
    context = _weigh(shape, weights, offset, largest, v)
    return lambda b, h, i, d: short_softmax.context_of(
        context(b, h, i, d), bits[b, h, i], factor[b, h, i]
    )


def _normalised(
    shape: _Shape, attrs: AttentionAttrs, q: Stage, k: Stage, v: Stage, keep: Keep
) -> Callable[..., Ranged]:
    """Probabilities of 8 bits, as published, times V."""
    scores = _scores(shape, q, k, keep)
    row_max = _row_max(shape, scores)

    def entry(batch: Any, head: Any, row: Any, token: Any) -> Ranged:
        score, top = scores[batch, head, row, token], row_max[batch, head, row]
        return softmax.exp_of(score, top, keep(batch, token), attrs.exponential)

    dims = (shape.batch, shape.heads, shape.rows)
    exponential = define("exponential", (*dims, shape.keys), entry, "int32")
    row_sum = _sum(
        "row_sum",
        dims,
        shape.keys,
        lambda b, h, i, j: exponential.tensor(b, h, i, j),
        (0, attrs.exponential.maximum),
    )
    factor = define(
        "row_factor",
        row_sum.shape,
        lambda b, h, i: softmax.factor_of_sum(row_sum[b, h, i]),
        "int64",
    )
    dtype, offset = _byte_operand(shape)
    probability = define(
        "probability",
        exponential.shape,
        lambda b, h, i, j: (
            offset + softmax.probability_of(exponential[b, h, i, j], factor[b, h, i])
        ),
        dtype,
    )
    context = _weigh(shape, probability, offset, 255, v)
    return lambda b, h, i, d: softmax.context_of_probabilities(context(b, h, i, d))


def _byte_operand(shape: _Shape) -> tuple[str, int]:
    """Type in which the instruction takes bytes 0..255, and the offset that brings them there."""
    dtype = shape.layout.lhs_dtype
    return dtype, -_UNSIGNED_OFFSET if dtype == "int8" else 0


def _weigh(
    shape: _Shape, weights: Stage, offset: int, largest: int, v: Stage
) -> Callable[..., Ranged]:
    """``sum_j weight[i, j] v[j, d]``, with the offset of the stored weights taken out again.

    Parameters
    ----------
    shape
        Sizes.
    weights
        [batch, heads, rows, keys], stored with `offset` added.
    offset, largest
        Offset of the stored weights; largest true weight.
    v
        [tokens, heads * head_dim] int8.

    Returns
    -------
    callable
        ``context(batch, head, row, column)``.
    """
    _, packed = _pack("v_packed", shape, v, tokens_are_columns=False)
    bound = largest * max(abs(v.low), abs(v.high))
    products = _sum(
        "context",
        (shape.batch, shape.heads, shape.rows, shape.columns),
        shape.keys,
        lambda b, h, i, d, j: _int32(weights, b, h, i, j) * packed(b, h, d, j),
        (-bound, bound),
    )
    if not offset:
        return lambda b, h, i, d: products[b, h, i, d]
    v_sum = _sum(
        "v_sum", (shape.batch, shape.heads, shape.columns), shape.keys, packed, (v.low, v.high)
    )
    limit = bound * shape.seq_len
    return lambda b, h, i, d: Ranged(
        -limit, limit, products.tensor(b, h, i, d) - v_sum.tensor(b, h, d) * offset
    )
