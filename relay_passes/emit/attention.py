"""Emission of `integer.attention`: QK^T, masked i-softmax, PV and requantisation as one kernel.

The kernel works on operands laid out for the target's dot-product instruction. Rows, columns and
depth are padded to whole tiles inside the kernel; padded keys count as masked, padded rows are
never stored.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import te, tirx

from ..integer.attrs import AttentionAttrs
from ..spec import short_softmax, softmax
from ..spec.exponential import Exponential
from ..spec.short_requantise import requantise_short
from ..spec.short_softmax import ShortExponential
from ..spec.values import Arithmetic, Condition, Ranged, known, not_equal
from .context import KernelContext
from .elementwise import per_channel
from .stage import Stage, define

_INT8_MINIMUM = -128
_UNSIGNED_OFFSET = 128

Keep = Callable[[Any, Any], Condition]
"""``keep(batch, token)``: whether a key takes part."""


def _sum(
    name: str,
    shape: tuple[int, ...],
    extent: int,
    entry: Any,
    bounds: tuple[int, int],
    arithmetic: Arithmetic,
) -> Stage:
    """Sum of `entry(*index, k)` (an int32 expression) over k < extent."""
    k = te.reduce_axis((0, extent), name="k")
    tensor = te.compute(shape, lambda *index: te.sum(entry(*index, k), axis=k), name=name)
    return Stage(tensor, min(bounds[0] * extent, 0), max(bounds[1] * extent, 0), arithmetic)


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
        [1] or [heads * head_dim]; and of packed operands the first row of each sequence.

    Returns
    -------
    Stage
        [batch, seq_len, heads, head_dim] of the requested type; the finished kernel stores it as
        [tokens, heads * head_dim], which is the same memory.
    """
    shape = _Shape(context, attrs.num_heads, q.shape[1], *last[2:])
    context.attributes["ibert.row_tile"] = shape.tile
    context.attributes["ibert.whole_tiles"] = shape.whole
    *mask, multiplier = last[:2]
    context.note_operands("score_products", q.low, k.low)
    # Where tokens are packed, the rows behind them hold anything: it counts for nothing in the end,
    # since their weights are 0, if only the products are exact before they cancel.
    v_low = v.low if shape.starts is None else _INT8_MINIMUM
    context.note_operands("context", _byte_operand(shape)[1], v_low)
    keep = _kept(shape, mask[0]) if mask else _inside(shape)
    constants = attrs.exponential
    short = isinstance(constants, ShortExponential)
    context_of = (
        _short(shape, constants, q, k, v, keep)
        if isinstance(constants, ShortExponential)
        else _normalised(shape, constants, q, k, v, keep)
    )

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
    """Sizes of the kernel, true and padded, and where the tokens of a sequence lie."""

    def __init__(
        self, context: KernelContext, heads: int, channels: int, starts: Stage | None = None
    ) -> None:
        self.starts = starts
        self.layout = context.layout
        self.batch, self.seq_len, self.heads = context.batch, context.seq_len, heads
        self.head_dim = channels // heads
        self.tile, self.rows = self.layout.row_tile(self.seq_len)
        self.keys = self.layout.padded_keys(self.seq_len)
        self.depth = self.layout.padded_depth(self.head_dim)
        self.columns = self.layout.padded_columns(self.head_dim)
        # Whole tiles everywhere: K and V are packed by shuffles, with nothing to fill up.
        self.whole = (self.keys, self.depth, self.columns) == (
            self.seq_len,
            self.head_dim,
            self.head_dim,
        )

    def query_row(self, batch: Any, token: Any) -> tirx.Expr:
        """Row of a token; that of another one for a token behind the last."""
        if self.starts is None:
            return batch * self.seq_len + tirx.min(token, self.seq_len - 1)
        last = tirx.const(self.batch * self.seq_len - 1, "int32")
        return tirx.min(self.starts.tensor(batch) + token, last)

    def first_key(self, batch: Any) -> tirx.Expr:
        """Row of key 0. Packed, keys are as many rows as ever that hold those of the sequence.

        K and V are read as if their tokens lay in place, so that schedules find what they know;
        `ibert_tvm.schedules.row_guard` moves what is read of them to these rows.
        """
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
        return mask.value(0, 1, flag)

    valid = define("valid", (shape.batch, shape.keys), entry, "int32")
    return lambda batch, token: not_equal(valid[batch, token], 0)


def _inside(shape: _Shape) -> Keep:
    """Whether a key is inside of the sequence: all that is asked where nothing is masked."""
    arithmetic = shape.layout.arithmetic
    if shape.keys == shape.seq_len:
        return lambda batch, token: Condition(tirx.const(1, "bool"), arithmetic)
    return lambda batch, token: Condition(tirx.all(token < shape.seq_len), arithmetic)


class _Queries:
    """Q and K as the instruction takes them, and what their product is.

    Attributes
    ----------
    compensation
        ``compensation(batch, head, key)``: what to add to a product for the offset that queries
        carry; None where they carry none.
    limit
        Bound of the absolute score.
    """

    def __init__(self, shape: _Shape, q: Stage, k: Stage) -> None:
        self.shape = shape
        layout = shape.layout
        self.offset = _UNSIGNED_OFFSET if layout.lhs_dtype == "uint8" else 0
        operand = te.compute(
            (shape.batch, shape.heads, shape.rows, shape.depth), self._query(q), name="q_operand"
        )
        low, high = q.low + self.offset, q.high + self.offset
        self.operand = Stage(operand, low, high, q.arithmetic)
        self.keys, self.key = _pack("k_packed", shape, k, tokens_are_columns=True)
        # |q k| summed over the head: what scores can be, whatever offset the operands carry.
        self.limit = max(abs(q.low), abs(q.high)) * max(abs(k.low), abs(k.high)) * shape.head_dim
        self.compensation = self._compensation() if self.offset else None

    def _query(self, q: Stage) -> Callable[..., tirx.Expr]:
        shape = self.shape

        def entry(batch: Any, head: Any, row: Any, column: Any) -> tirx.Expr:
            channel = head * shape.head_dim + tirx.min(column, shape.head_dim - 1)
            value = q.tensor(shape.query_row(batch, row), channel)
            return (value.astype("int32") + self.offset).astype(shape.layout.lhs_dtype)

        return entry

    def _compensation(self) -> Callable[..., Ranged]:
        """Sum the channels of a key."""
        shape = self.shape
        k_sum = _sum_of_columns("k_sum", shape, (shape.keys, shape.depth), self.key, self.keys)
        return lambda b, h, j: k_sum[b, h, 0, j] * -self.offset

    def products(self) -> Stage:
        """QK^T, [batch, heads, rows, keys] int32."""
        shape = self.shape
        ends = (self.operand.low, self.operand.high), (self.keys.low, self.keys.high)
        corners = [a * b for a in ends[0] for b in ends[1]]
        low, high = min(*corners, 0) * shape.depth, max(*corners, 0) * shape.depth
        d = te.reduce_axis((0, shape.depth), name="k")

        def entry(b: Any, h: Any, i: Any, j: Any) -> Any:
            return te.sum(_int32(self.operand, b, h, i, d) * self.key(b, h, j, d), axis=d)

        tensor = te.compute(
            (shape.batch, shape.heads, shape.rows, shape.keys), entry, name="score_products"
        )
        return Stage(tensor, low, high, self.operand.arithmetic)


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
        if shape.whole:
            value = x.tensor(batch * seq_len + token, head * head_dim + channel)
            return value.astype(layout.rhs_dtype)
        inside = tirx.all(token < seq_len, channel < head_dim)
        value = x.tensor(
            batch * seq_len + tirx.min(token, seq_len - 1),
            head * head_dim + tirx.min(channel, head_dim - 1),
        )
        kept = tirx.if_then_else(inside, value, tirx.const(0, "int8"))
        return kept.astype(layout.rhs_dtype)

    packed = te.compute((shape.batch, shape.heads, *layout.packed_shape(*sizes)), entry, name=name)
    stage = Stage(packed, min(x.low, 0), max(x.high, 0), x.arithmetic)

    def read(batch: Any, head: Any, column: Any, depth: Any) -> tirx.Expr:
        return _int32(
            stage, batch, head, column // lanes, depth // step, column % lanes, depth % step
        )

    return stage, read


def _sum_of_columns(
    name: str,
    shape: _Shape,
    sizes: tuple[int, int],
    packed: Callable[..., tirx.Expr],
    bounds: Stage,
) -> Stage:
    """Sum a packed operand along its depth by a product with rows of ones.

    Parameters
    ----------
    name
        Block name.
    shape
        Sizes.
    sizes
        Columns and depth of the operand.
    packed
        ``packed(batch, head, column, depth)``.
    bounds
        The operand, for its bounds.

    Returns
    -------
    Stage
        [batch, heads, rows of one instruction, columns] int32; all rows are alike.
    """
    columns, depth = sizes
    rows, dtype = shape.layout.row_step, shape.layout.lhs_dtype
    ones = te.compute((rows, depth), lambda *_: tirx.const(1, dtype), name="ones")
    return _sum(
        name,
        (shape.batch, shape.heads, rows, columns),
        depth,
        lambda b, h, i, j, k: ones(i, k).astype("int32") * packed(b, h, j, k),
        (bounds.low, bounds.high),
        bounds.arithmetic,
    )


def _scores(shape: _Shape, q: Stage, k: Stage, keep: Keep) -> Stage:
    """Masked accumulators of QK^T, [batch, heads, rows, keys] int32."""
    queries = _Queries(shape, q, k)
    products = queries.products()

    def score(batch: Any, head: Any, row: Any, token: Any) -> Ranged:
        value = products[batch, head, row, token]
        if queries.compensation is not None:
            value = value + queries.compensation(batch, head, token)
        exact = known(value, -queries.limit, queries.limit)
        return softmax.masked_score(exact, keep(batch, token))

    return define("scores", (shape.batch, shape.heads, shape.rows, shape.keys), score, "int32")


def _short_scores(
    shape: _Shape, products: Stage, compensation: Callable[..., Ranged] | None, keep: Keep
) -> Stage:
    """Scores of the short softmax: one addition per entry compensates and masks."""

    def offset(batch: Any, head: Any, key: Any) -> Ranged:
        masked = short_softmax.key_offset(keep(batch, key))
        if compensation is None:
            return masked
        return short_softmax.score_of(compensation(batch, head, key), masked)

    offsets = define("key_offset", (shape.batch, shape.heads, shape.keys), offset, "int32")
    return define(
        "scores",
        products.shape,
        lambda b, h, i, j: short_softmax.score_of(products[b, h, i, j], offsets[b, h, j]),
        "int32",
    )


def _by_lanes(
    shape: _Shape, name: str, x: Stage, entry: Callable[..., Any], reduce: Callable[..., Any]
) -> te.Tensor:
    """Reduce [batch, heads, rows, keys] along the keys, first by vector lane, then the lanes."""
    lanes = shape.layout.reduced_lanes
    if shape.layout.scalar:
        k = te.reduce_axis((0, shape.keys), name="k")
        return te.compute(x.shape[:3], lambda b, h, i: reduce(entry(b, h, i, k), axis=k), name=name)
    c = te.reduce_axis((0, shape.keys // lanes), name="c")
    by_lane = te.compute(
        (*x.shape[:3], lanes),
        lambda b, h, i, j: reduce(entry(b, h, i, c * lanes + j), axis=c),
        name=f"{name}_lanes",
    )
    j = te.reduce_axis((0, lanes), name="j")
    return te.compute(x.shape[:3], lambda b, h, i: reduce(by_lane(b, h, i, j), axis=j), name=name)


def _row_max(shape: _Shape, scores: Stage) -> Stage:
    j = te.reduce_axis((0, shape.keys), name="j")
    tensor = te.compute(
        (shape.batch, shape.heads, shape.rows),
        lambda b, h, i: te.max(scores.tensor(b, h, i, j), axis=j),
        name="row_max",
    )
    return Stage(tensor, scores.low, scores.high, scores.arithmetic)


def _short(
    shape: _Shape, constants: ShortExponential, q: Stage, k: Stage, v: Stage, keep: Keep
) -> Callable[..., Ranged]:
    """u8 exponentials times V, divided by the row's sum once per entry of the context."""
    queries = _Queries(shape, q, k)
    scores = _short_scores(shape, queries.products(), queries.compensation, keep)
    weights, offset, bits, factor = _short_softmax(shape, constants, scores)
    context = _weigh(shape, weights, offset, constants.maximum, v)
    return lambda b, h, i, d: short_softmax.context_of(
        context(b, h, i, d), bits[b, h, i], factor[b, h, i]
    )


def _short_softmax(
    shape: _Shape, constants: ShortExponential, scores: Stage
) -> tuple[Stage, int, Stage, Stage]:
    """Exponentials of the scores of each row, and how to divide by their sum.

    Returns
    -------
    weights, offset, bits, factor
        Exponentials [batch, heads, rows, keys], stored with `offset` added; `sum_bits` and
        `reciprocal` of each row's sum.
    """
    row_max = Stage(
        _by_lanes(shape, "row_max", scores, scores.tensor, te.max),
        scores.low,
        scores.high,
        scores.arithmetic,
    )
    dtype, offset = _byte_operand(shape)
    dims = (shape.batch, shape.heads, shape.rows)
    largest = constants.maximum

    def entry(batch: Any, head: Any, row: Any, key: Any) -> Ranged:
        top = short_softmax.row_floor(row_max[batch, head, row])
        e = short_softmax.exponential_of(scores[batch, head, row, key], top, constants)
        return e + offset if offset else e

    weights = define("exponential", (*dims, shape.keys), entry, dtype)
    total = Stage(
        _by_lanes(
            shape,
            "row_sum",
            weights,
            lambda *index: _int32(weights, *index) - offset,
            te.sum,
        ),
        0,
        largest * shape.keys,
        scores.arithmetic,
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
    return weights, offset, bits, factor


def _normalised(
    shape: _Shape, constants: Exponential, q: Stage, k: Stage, v: Stage, keep: Keep
) -> Callable[..., Ranged]:
    """Probabilities of 8 bits, as published, times V."""
    scores = _scores(shape, q, k, keep)
    row_max = _row_max(shape, scores)

    def entry(batch: Any, head: Any, row: Any, token: Any) -> Ranged:
        score, top = scores[batch, head, row, token], row_max[batch, head, row]
        return softmax.exp_of(score, top, keep(batch, token), constants)

    dims = (shape.batch, shape.heads, shape.rows)
    exponential = define("exponential", (*dims, shape.keys), entry, "int32")
    row_sum = _sum(
        "row_sum",
        dims,
        shape.keys,
        lambda b, h, i, j: exponential.tensor(b, h, i, j),
        (0, constants.maximum),
        exponential.arithmetic,
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
    if dtype == "int8" and shape.layout.either_sign:
        return "uint8", 0
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
    values, packed = _pack("v_packed", shape, v, tokens_are_columns=False)
    bound = largest * max(abs(v.low), abs(v.high))
    products = _sum(
        "context",
        (shape.batch, shape.heads, shape.rows, shape.columns),
        shape.keys,
        lambda b, h, i, d, j: _int32(weights, b, h, i, j) * packed(b, h, d, j),
        (-bound, bound),
        v.arithmetic,
    )
    if not offset:
        return lambda b, h, i, d: products[b, h, i, d]
    total = _value_sum(shape, values, packed)
    limit = bound * shape.seq_len
    return lambda b, h, i, d: v.value(
        -limit, limit, products.tensor(b, h, i, d) - total(b, h, i, d) * offset
    )


def _value_sum(
    shape: _Shape, values: Stage, packed: Callable[..., tirx.Expr]
) -> Callable[..., tirx.Expr]:
    """``sum_j v[j, d]`` for row i, by the instruction where there is one."""
    if shape.layout.depth > 1:
        sizes, rows = (shape.columns, shape.keys), shape.layout.row_step
        by_product = _sum_of_columns("v_sum", shape, sizes, packed, values)
        # All rows are alike; reading them all keeps schedules from computing some only.
        return lambda b, h, i, d: by_product.tensor(b, h, i % rows if rows > 1 else 0, d)
    v_sum = _sum(
        "v_sum",
        (shape.batch, shape.heads, shape.columns),
        shape.keys,
        packed,
        (values.low, values.high),
        values.arithmetic,
    )
    return lambda b, h, i, d: v_sum.tensor(b, h, d)
