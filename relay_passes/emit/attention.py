"""Attention's operands as kernels have them: laid out for the target's dot-product instruction.

Rows, columns and depth are padded to whole tiles inside the kernel; padded keys count as masked,
padded rows are never stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from tvm import te, tirx

from ..integer.domain import EntryAt, Heads, Shape, Windowed
from ..integer.operator import per_channel
from ..spec.arithmetic import Arithmetic
from ..spec.parts import high_part, joined, low_part
from ..spec.short_softmax import VALUE_BITS
from ..spec.values import Condition, Ranged, Value, known, not_equal, ranged, trace
from .layout import KernelLayout
from .stage import Expr, Stage, expression

# A kernel under construction: its attributes, and blocks that compute entry by entry.

_NEGATED_MAXIMUM = -127


class KernelBlocks:
    """State of one kernel under construction, and its plainest blocks.

    Parameters
    ----------
    layout
        Operand layout of the target.
    batch
        Sequences that the kernel serves.
    layer
        Name for messages.

    Attributes
    ----------
    attributes
        Attributes of the resulting function, read by schedules.
    merged_output
        Whether the result is written as [batch, seq_len, heads, head_dim] and stored as [tokens,
        channels].
    keys
        Tensors that packed attention reads from the first key of a sequence on.
    """

    def __init__(self, layout: KernelLayout, batch: int, layer: str) -> None:
        self.layout = layout
        self.arithmetic = layout.arithmetic.fresh()
        self.batch = batch
        self.layer = layer
        self.attributes: dict[str, object] = {}
        self.merged_output = False
        self.keys: list[te.Tensor] = []
        self._both_minimum: list[str] = []

    def stage(self, tensor: te.Tensor, low: int, high: int) -> Stage:
        """Stage of a tensor, with the target's arithmetic."""
        return Stage(tensor, low, high, self.arithmetic)

    def value(self, low: int, high: int, expr: Expr) -> Ranged:
        """Value of an expression that the specification did not make."""
        return Ranged(low, high, expr, arithmetic=self.arithmetic)

    def trace(self, entry: EntryAt, *index: Expr) -> Ranged:
        """Expression of one entry, with the let-bindings that it needs."""
        return trace(entry, *index, arithmetic=self.arithmetic)

    def define(self, name: str, shape: Shape, entry: EntryAt, dtype: str = "") -> Stage:
        """Define a block that computes entry by entry."""
        bounds: list[Ranged] = []

        def compute(*index: Expr) -> Expr:
            value = self.trace(entry, *index)
            bounds.append(value)
            return expression(value, dtype or value.dtype)

        tensor = te.compute(tuple(shape), compute, name=name)
        (value,) = bounds
        return replace(self.stage(tensor, value.low, value.high), is_known=value.expr is None)

    def note_operands(self, product: str, lhs_low: int, rhs_low: int) -> None:
        """Tell schedules in which matrix products both factors may be -128.

        The sum of two such products is the only one of two int8 products that 16 bits do not hold.

        Parameters
        ----------
        product
            Name of its block.
        lhs_low, rhs_low
            Lower bounds of the factors.
        """
        if self.layout.lhs_dtype == "int8" and max(lhs_low, rhs_low) < _NEGATED_MAXIMUM:
            self._both_minimum.append(product)
            self.attributes["ibert.both_minimum"] = self._both_minimum


_INT8_MINIMUM = -128
_UNSIGNED_OFFSET = 128


class KernelHeads(Heads[Stage]):
    """See the module, and `ibert_tvm.relay_passes.integer.domain.Heads`."""

    domain: KernelBlocks

    def __init__(
        self, domain: KernelBlocks, attention: Windowed, operands: Mapping[str, Stage]
    ) -> None:
        self.q, self.k, self.v = (operands[name] for name in "qkv")
        self.tokens = operands.get("tokens")
        self.shape = shape = _Shape(domain, attention.num_heads, operands)
        leading = (shape.batch, shape.heads)
        super().__init__(domain, attention, operands, leading, shape.rows, shape.keys)
        self.key_count = shape.seq_len
        domain.attributes["ibert.row_tile"] = shape.tile
        domain.attributes["ibert.whole_tiles"] = shape.whole
        before, after = (min(x, shape.seq_len - 1) for x in (attention.before, attention.after))
        if shape.starts is not None or min(before, after) < shape.seq_len - 1:
            domain.attributes["ibert.window"] = [before, after, shape.seq_len]
        if shape.starts is not None:
            domain.keys = [self.k.tensor, self.v.tensor]
        domain.note_operands("score_products", self.q.low, self.k.low)
        # Where tokens are packed, the rows behind them hold anything: it counts for nothing in the
        # end, since their weights are 0, if only the products are exact before they cancel.
        v_low = self.v.low if shape.starts is None else -(2**15)
        parts = self.wide_values and not shape.layout.multiplies_short
        self._parts = _define_parts(domain, shape, self.v) if parts else None
        v_low = v_low if self._parts is None else high_part(v_low, VALUE_BITS)
        domain.note_operands("context", _byte_operand(shape)[1], max(v_low, _INT8_MINIMUM))
        # |q k| summed over the head: what scores can be, whatever offset the operands carry.
        largest = max(abs(self.q.low), abs(self.q.high)) * max(abs(self.k.low), abs(self.k.high))
        self._limit = largest * shape.head_dim
        self.value_bounds = (self.v.low, self.v.high)
        low, high = sum(x.low for x in self.terms), sum(x.high for x in self.terms)
        self.score_bounds = (low - self._limit, high + self._limit)
        self._offset = _UNSIGNED_OFFSET if shape.layout.lhs_dtype == "uint8" else 0
        self._valid: Stage | None = None
        self._key_sum: Stage | None = None
        self._runs: Stage | None = None

    # -- which keys count -----------------------------------------------------------------------

    def kept_key(self, batch: Expr, key: Expr) -> Condition:
        """Whether a key is a real token, no padding of the caller's or of the tile's."""
        shape = self.shape
        if self.mask is not None:
            self._valid = self._valid or self._define_valid(self.mask)
            return not_equal(self._valid[batch, key], 0)
        if shape.keys == shape.seq_len:
            return Condition(tirx.const(1, "bool"), self.domain.arithmetic)
        return Condition(tirx.all(key < shape.seq_len), self.domain.arithmetic)

    def _define_valid(self, mask: Stage) -> Stage:
        shape = self.shape

        def entry(batch: tirx.Var, key: tirx.Var) -> Ranged:
            inside = key < shape.seq_len
            token = tirx.min(key, shape.seq_len - 1)
            value = mask.tensor(batch, token) != 0
            if shape.starts is not None:
                row = shape.first_key(batch) + token
                first, end = shape.starts.tensor(batch), shape.starts.tensor(batch + 1)
                inside = tirx.all(inside, row >= first, row < end)
                value = mask.tensor(row // shape.seq_len, row % shape.seq_len) != 0
            # What is read lies in the mask either way: no branch, which keeps keys from vectors.
            flag = tirx.Select(inside, value.astype("int32"), tirx.const(0, "int32"))
            return self.domain.value(0, 1, flag)

        return self.domain.define("valid", (shape.batch, shape.keys), entry, "int32")

    def _place(self, row: Expr) -> Expr:
        """Position in its sequence of the token in a row, where padding is left out."""
        assert self.tokens is not None
        length = self.shape.seq_len
        return self.tokens.tensor(row // length, row % length) % length

    def _query_place(self, batch: Expr, query: Expr) -> Expr:
        if self.shape.starts is None:
            return tirx.min(query, self.shape.seq_len - 1)
        return self._place(self.shape.query_row(batch, query))

    def _key_place(self, batch: Expr, key: Expr) -> Expr:
        inside = tirx.min(key, self.shape.seq_len - 1)
        if self.shape.starts is None:
            return inside
        return self._place(self.shape.first_key(batch) + inside)

    def _distance(self, batch: Expr, query: Expr, key: Expr) -> Expr:
        return self._key_place(batch, key) - self._query_place(batch, query)

    def in_window(self, batch: Expr, query: Expr, key: Expr) -> Condition:
        """By the distance, and by the mask of pairs; what a tile adds is masked by its key."""
        length, window = self.shape.seq_len, []
        distance = self._distance(batch, query, key)
        if self.attention.before < length - 1:
            window.append(distance >= -self.attention.before)
        if self.attention.after < length - 1:
            window.append(distance <= self.attention.after)
        if self.pairs is not None:
            row = batch * length + self._query_place(batch, query)
            pair = self.pairs.tensor(row, self._key_place(batch, key))
            window.append(pair != tirx.const(0, self.pairs.dtype))
        every = tirx.all(*window) if window else tirx.const(1, "bool")
        return Condition(every, self.domain.arithmetic)

    def places(self, batch: Expr, query: Expr, key: Expr) -> tuple[Expr, Expr]:
        """Keys behind the sequence get the place of its last token; they have no weight."""
        return self._query_place(batch, query), self._key_place(batch, key)

    def bias(self, batch: Expr, head: Expr, query: Expr, key: Expr) -> Ranged:
        """All terms of a score.

        Where padding is left out, keys may lie anywhere in their sequence, and reading a table at
        the places of a vector of keys takes one load per key. Nearly all vectors are of neighbours,
        though, whose entries lie one after the other: those are loaded at once.
        """
        anywhere = ranged(super().bias(batch, head, query, key))
        if self.shape.starts is None or self.shape.layout.scalar or anywhere.expr is None:
            return anywhere
        lanes = self.shape.layout.reduced_lanes
        self._runs = self._runs or self._define_runs(lanes)
        first = self._runs.tensor(batch, key // lanes)
        place = self._query_place(batch, query)
        together = ranged(self.bias_of_places(batch, head, place, first + key % lanes))
        chosen = tirx.if_then_else(first >= 0, together.expr, anywhere.expr)
        return self.domain.value(anywhere.low, anywhere.high, chosen)

    def _define_runs(self, lanes: int) -> Stage:
        """Place of the first of each `lanes` keys that are neighbours in a sequence, or else -1."""
        shape = self.shape
        assert shape.starts is not None
        starts = shape.starts.tensor

        def entry(batch: tirx.Var, block: tirx.Var) -> Ranged:
            first, last = block * lanes, block * lanes + lanes - 1
            place, row = self._key_place(batch, first), shape.first_key(batch)
            inside = tirx.all(row + first >= starts(batch), row + last < starts(batch + 1))
            # Of one sequence places only grow.
            neighbours = self._key_place(batch, last) - place == lanes - 1
            run = tirx.if_then_else(tirx.all(inside, neighbours), place, -1)
            return self.domain.value(-1, shape.seq_len - 1, run)

        extents = (shape.batch, shape.keys // lanes)
        return self.domain.define("key_runs", extents, entry, "int32")

    # -- Q K^T ----------------------------------------------------------------------------------

    def products(self) -> Stage:
        """Q K^T of the operands as they are laid out, [batch, heads, rows, keys] int32."""
        shape, layout, q = self.shape, self.shape.layout, self.q

        def query(batch: Expr, head: Expr, row: Expr, column: Expr) -> Expr:
            channel = head * shape.head_dim + tirx.min(column, shape.head_dim - 1)
            value = q.tensor(shape.query_row(batch, row), channel)
            return (value.astype("int32") + self._offset).astype(layout.lhs_dtype)

        tensor = te.compute(
            (shape.batch, shape.heads, shape.rows, shape.depth), query, name="q_operand"
        )
        operand = self.domain.stage(tensor, q.low + self._offset, q.high + self._offset)
        keys, read_key = _pack("k_packed", shape, self.k)
        if self._offset:
            sizes = (shape.keys, shape.depth)
            self._key_sum = _sum_of_columns("k_sum", shape, sizes, read_key, keys)
        corners = [a * b for a in (operand.low, operand.high) for b in (keys.low, keys.high)]
        d = te.reduce_axis((0, shape.depth), name="k")
        products = te.compute(
            (shape.batch, shape.heads, shape.rows, shape.keys),
            lambda b, h, i, j: te.sum(_int32(operand, b, h, i, d) * read_key(b, h, j, d), axis=d),
            name="score_products",
        )
        low, high = min(*corners, 0) * shape.depth, max(*corners, 0) * shape.depth
        return self.domain.stage(products, low, high)

    def key_correction(self, batch: Expr, head: Expr, key: Expr) -> Value:
        """The sum of a key's channels, as often as queries were offset."""
        return 0 if self._key_sum is None else self._key_sum[batch, head, 0, key] * -self._offset

    def exact_score(
        self, products: Stage, batch: Expr, head: Expr, query: Expr, key: Expr
    ) -> Value:
        """One of the products, corrected."""
        value = products[batch, head, query, key]
        if self._key_sum is not None:
            value = value + self.key_correction(batch, head, key)
        return known(value, -self._limit, self._limit)

    # -- stages ---------------------------------------------------------------------------------

    def weights(self, name: str, entry: EntryAt, largest: int) -> Stage:
        """Bytes of the signedness that the instruction takes, offset where it must be."""
        dtype, offset = _byte_operand(self.shape)

        def stored(*index: Expr) -> Value:
            value = entry(*index)
            return value + offset if offset else value

        made = self.define(name, (self.shape.rows, self.shape.keys), stored, dtype)
        return replace(made, offset=offset)

    def row_max(self, name: str, scores: Stage) -> Stage:
        """Maximum by vector lane, then of the lanes."""
        return self.domain.stage(
            _by_lanes(self.shape, name, scores, scores.tensor, te.max), scores.low, scores.high
        )

    def row_sum(self, name: str, x: Stage, largest: int) -> Stage:
        """Sum by vector lane, then of the lanes, without the offset of stored bytes."""
        total = _by_lanes(self.shape, name, x, lambda *index: _int32(x, *index) - x.offset, te.sum)
        return self.domain.stage(total, 0, largest * self.shape.keys)

    # -- P V ------------------------------------------------------------------------------------

    def context(self, weights: Stage, largest: int) -> Callable[..., Ranged]:
        """``sum_j weights[i, j] v[j, d]``, with the offset of stored weights taken out again."""
        shape, v, parts, offset = self.shape, self.v, self._parts, weights.offset
        columns = shape.columns if parts is None else 2 * shape.columns
        values, packed = _pack("v_packed", shape, parts or v, columns, parts is not None)
        bound = largest * max(abs(values.low), abs(values.high))
        products = _sum(
            "context",
            (shape.batch, shape.heads, shape.rows, columns),
            shape.keys,
            lambda b, h, i, d, j: _int32(weights, b, h, i, j) * packed(b, h, d, j),
            (-bound, bound),
            v.arithmetic,
        )
        if parts is None and not offset:
            return lambda b, h, i, d: products[b, h, i, d]
        total = _value_sum(shape, values, packed, columns) if offset else None

        def both(part: Callable[..., Expr], b: Expr, h: Expr, i: Expr, d: Expr) -> Expr:
            """What a stage by column has of a channel: of both parts of it, or of the only one."""
            if parts is None:
                return part(b, h, i, d)
            return joined(part(b, h, i, d), part(b, h, i, d + shape.columns), VALUE_BITS)

        limit = largest * max(abs(v.low), abs(v.high)) * shape.seq_len

        def entry(*index: Expr) -> Ranged:
            value = both(products.tensor, *index)
            if total is not None:
                value = value - both(total, *index) * offset
            return v.value(-limit, limit, value)

        return entry

    def output(self, entry: Callable[..., Value], multiplier: Stage, dtype: str) -> Stage:
        """Rows of whole tiles, of which those of tokens are stored.

        Returns
        -------
        Stage
            [batch, seq_len, heads, head_dim]; the finished kernel stores it as [tokens, heads *
            head_dim], which is the same memory.
        """
        shape = self.shape

        def channel(batch: Expr, head: Expr, row: Expr, column: Expr) -> Ranged:
            inside = column
            if shape.columns != shape.head_dim:
                inside = tirx.min(column, shape.head_dim - 1)
            factor = per_channel(multiplier, head * shape.head_dim + inside)
            return entry(batch, head, row, column, factor)

        padded = self.define("attended_rows", (shape.rows, shape.columns), channel, dtype)
        self.domain.merged_output = True
        return self.domain.define(
            "attended",
            (shape.batch, shape.seq_len, shape.heads, shape.head_dim),
            lambda batch, row, head, column: padded[batch, head, row, column],
            dtype,
        )


class _Shape:
    """Sizes of the kernel, true and padded, and where the tokens of a sequence lie."""

    def __init__(self, domain: KernelBlocks, heads: int, operands: Mapping[str, Stage]) -> None:
        tokens, channels = operands["q"].shape
        self.starts = operands.get("starts")
        self.layout = domain.layout
        self.batch, self.seq_len, self.heads = domain.batch, tokens // domain.batch, heads
        self.head_dim = channels // heads
        # Heads of the queries that read one of the keys.
        self.sharing = channels // operands["k"].shape[1]
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

    def query_row(self, batch: Expr, token: Expr) -> Expr:
        """Row of a token; that of another one for a token behind the last."""
        if self.starts is None:
            return batch * self.seq_len + tirx.min(token, self.seq_len - 1)
        last = tirx.const(self.batch * self.seq_len - 1, "int32")
        return tirx.min(self.starts.tensor(batch) + token, last)

    def key_channel(self, head: Expr, channel: Expr) -> Expr:
        """Channel of keys and values that a head of the queries reads."""
        return (head if self.sharing == 1 else head // self.sharing) * self.head_dim + channel

    def first_key(self, batch: Expr) -> Expr:
        """Row of key 0. Packed, keys are as many rows as ever that hold those of the sequence.

        K and V are read as if their tokens lay in place, so that schedules find what they know;
        `ibert_tvm.schedules.row_guard` moves what is read of them to these rows.
        """
        if self.starts is None or self.batch == 1:
            return batch * self.seq_len
        last = tirx.const((self.batch - 1) * self.seq_len, "int32")
        return tirx.min(self.starts.tensor(batch), last)


def _sum(
    name: str,
    shape: Shape,
    extent: int,
    entry: Callable[..., Expr],
    bounds: tuple[int, int],
    arithmetic: Arithmetic,
) -> Stage:
    """Sum of `entry(*index, k)` (an int32 expression) over k < extent."""
    k = te.reduce_axis((0, extent), name="k")
    tensor = te.compute(shape, lambda *index: te.sum(entry(*index, k), axis=k), name=name)
    return Stage(tensor, min(bounds[0] * extent, 0), max(bounds[1] * extent, 0), arithmetic)


def _int32(stage: Stage, *index: Expr) -> Expr:
    return stage.tensor(*index).astype("int32")


def _define_parts(domain: KernelBlocks, shape: _Shape, v: Stage) -> Stage:
    """Both bytes of wide V: [batch, heads, tokens, columns of high parts, then of low parts].

    Products of bytes with either part, added up by `KernelHeads.context`, are those with V.
    """

    def entry(batch: Expr, head: Expr, token: Expr, column: Expr) -> Ranged:
        channel = tirx.min(column % shape.columns, shape.head_dim - 1)
        row = batch * shape.seq_len + token
        value = v[row, shape.key_channel(head, channel)]
        high, low = high_part(value, VALUE_BITS), low_part(value, VALUE_BITS)
        parts = expression(high, "int32"), expression(low, "int32")
        chosen = tirx.if_then_else(column < shape.columns, *parts)
        return domain.value(min(high.low, low.low), max(high.high, low.high), chosen)

    extents = (shape.batch, shape.heads, shape.seq_len, 2 * shape.columns)
    return domain.define("v_parts", extents, entry, "int8")


def _pack(
    name: str, shape: _Shape, x: Stage, columns: int = 0, by_head: bool = False
) -> tuple[Stage, Callable[..., Expr]]:
    """Lay K or V out for the instruction, zero where tiles reach beyond the true sizes.

    Parameters
    ----------
    name
        Block name.
    shape
        Sizes.
    x
        [tokens, heads of keys * head_dim].
    columns
        Of the product, which are those of V. Without, its columns are tokens, and its depth the
        channels of a head of K.
    by_head
        Whether x is [batch, heads, tokens, columns] instead.

    Returns
    -------
    Stage, callable
        The packed operand, and ``entry(batch, head, column, depth)`` that reads it as int32.
    """
    layout = shape.layout
    lanes, step = layout.lanes, layout.depth
    seq_len, channels = shape.seq_len, columns if by_head else shape.head_dim
    dtype = x.dtype if x.dtype == "int16" else layout.rhs_dtype
    sizes = (columns, shape.keys) if columns else (shape.keys, shape.depth)

    def read_from(batch: Expr, head: Expr, token: Expr, channel: Expr) -> Expr:
        if by_head:
            return x.tensor(batch, head, token, channel)
        return x.tensor(batch * seq_len + token, shape.key_channel(head, channel))

    def entry(batch: Expr, head: Expr, block: Expr, chunk: Expr, lane: Expr, inner: Expr) -> Expr:
        column, depth = block * lanes + lane, chunk * step + inner
        token, channel = (depth, column) if columns else (column, depth)
        if shape.whole:
            return read_from(batch, head, token, channel).astype(dtype)
        inside = tirx.all(token < seq_len, channel < channels)
        at = tirx.min(token, seq_len - 1), tirx.min(channel, channels - 1)
        kept = tirx.if_then_else(inside, read_from(batch, head, *at), tirx.const(0, x.dtype))
        return kept.astype(dtype)

    packed = te.compute((shape.batch, shape.heads, *layout.packed_shape(*sizes)), entry, name=name)
    stage = Stage(packed, min(x.low, 0), max(x.high, 0), x.arithmetic)

    def read(batch: Expr, head: Expr, column: Expr, depth: Expr) -> Expr:
        return _int32(
            stage, batch, head, column // lanes, depth // step, column % lanes, depth % step
        )

    return stage, read


def _sum_of_columns(
    name: str, shape: _Shape, sizes: tuple[int, int], packed: Callable[..., Expr], bounds: Stage
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


def _by_lanes(
    shape: _Shape, name: str, x: Stage, entry: Callable[..., Expr], reduce: Callable[..., Expr]
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


def _byte_operand(shape: _Shape) -> tuple[str, int]:
    """Type in which the instruction takes bytes 0..255, and the offset that brings them there."""
    dtype = shape.layout.lhs_dtype
    if dtype == "int8" and shape.layout.either_sign:
        return "uint8", 0
    return dtype, -_UNSIGNED_OFFSET if dtype == "int8" else 0


def _value_sum(
    shape: _Shape, values: Stage, packed: Callable[..., Expr], columns: int
) -> Callable[..., Expr]:
    """``sum_j v[j, d]`` for row i, by the instruction where there is one."""
    if shape.layout.depth > 1:
        sizes, rows = (columns, shape.keys), shape.layout.row_step
        by_product = _sum_of_columns("v_sum", shape, sizes, packed, values)
        # All rows are alike; reading them all keeps schedules from computing some only.
        return lambda b, h, i, d: by_product.tensor(b, h, i % rows if rows > 1 else 0, d)
    v_sum = _sum(
        "v_sum",
        (shape.batch, shape.heads, columns),
        shape.keys,
        packed,
        (values.low, values.high),
        values.arithmetic,
    )
    return lambda b, h, i, d: v_sum.tensor(b, h, d)
