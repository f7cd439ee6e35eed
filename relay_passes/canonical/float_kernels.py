"""Scheduled float kernels of the canonical operators for the host CPU, at static shapes.

They exist to calibrate in reasonable time and to be an honest float baseline: register tiles with
vectorised accumulators for the matrix products, packed weights, parallel outer loops, one pass
per row operation. Exponential, error function and tanh are TVM's vectorisable approximations
(within a few units of the last place of float32).

Every function of a kernel returns a scheduled PrimFunc; its docstring starts with the operands
and the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import tvm
from tvm import s_tir, te, tirx, topi

from .legalize import position_ids_te

FLOAT = "float32"


@dataclass(frozen=True)
class Tile:
    """Sizes of the register tile of a matrix product.

    Parameters
    ----------
    lanes : int
        Floats in one vector register.
    rows : int
        Most rows of the tile; the number used balances the tail, see `balanced`.
    vectors : int
        Vector registers side by side in one row of the tile.
    """

    lanes: int
    rows: int
    vectors: int = 2

    @property
    def columns(self) -> int:
        """Columns of the tile, which is also the panel width of packed weights."""
        return self.lanes * self.vectors

    def balanced(self, extent: int) -> int:
        """Rows per tile for `extent` rows in total: as few padded rows as possible."""
        candidates = range(max(1, self.rows // 2), self.rows + 1)
        if extent <= self.rows:
            return extent
        return min(candidates, key=lambda rows: (-(-extent // rows) * rows, -rows))


def tile_for(target: tvm.target.Target) -> Tile:
    """Choose the tile for an LLVM `target` from its vector width and number of registers."""
    lanes = _lanes(target)
    many_registers = lanes >= 16 or _is_aarch64(target)
    return Tile(lanes=lanes, rows=12 if many_registers else 6)


def _lanes(target: tvm.target.Target) -> int:
    """Floats in a vector register.

    ``llvm_get_vector_width`` is of no use: in TVM 0.27 it says 512 bits of every x86-64 processor.
    """
    if _is_aarch64(target):
        return 4
    features = tvm.target.codegen.llvm_get_cpu_features(target)
    return 16 if "avx512f" in features else 8 if "avx" in features else 4


def _is_aarch64(target: tvm.target.Target) -> bool:
    return str(target.attrs.get("mtriple", "")).startswith(("aarch64", "arm64"))


def _divisor(extent: int, most: int) -> int:
    """Largest power of two up to `most` that divides `extent`."""
    width = 1
    while width * 2 <= most and extent % (width * 2) == 0:
        width *= 2
    return width


def _function(outputs: Sequence[te.Tensor]) -> s_tir.Schedule:
    return s_tir.Schedule(te.create_prim_func(list(outputs)))


def _finish(schedule: s_tir.Schedule) -> tirx.PrimFunc:
    # Without its global symbol the function may be added to a module beside others like it.
    function = schedule.mod["main"].without_attr("global_symbol")
    return function.with_attr({"tirx.noalias": True, "tirx.is_scheduled": True})


def _tiled_product(
    batch: tuple[int, ...],
    rows: int,
    columns: int,
    inner: int,
    left: Callable[..., tirx.PrimExpr],
    right: Callable[..., tirx.PrimExpr],
    tile_rows: int,
    tile_columns: int,
) -> te.Tensor:
    """Accumulators [*batch, rows/tr, columns/tc, tr, tc] of a batched matrix product.

    ``left(*batch, m, k)`` and ``right(*batch, panel, k, column)`` load the operands. Rows past the
    end repeat the last one, so that the inner loops need no condition; nobody reads their results.
    """
    k = te.reduce_axis((0, inner), name="k")
    depth = len(batch)

    def body(*index: tirx.Var) -> tirx.PrimExpr:
        outer, (mo, no, mi, ni) = index[:depth], index[depth:]
        row = mo * tile_rows + mi
        if rows % tile_rows:
            row = tirx.min(row, rows - 1)
        return te.sum(left(*outer, row, k) * right(*outer, no, k, ni), axis=k)

    shape = (*batch, -(-rows // tile_rows), -(-columns // tile_columns), tile_rows, tile_columns)
    return te.compute(shape, body, name="product")


def _schedule_product(
    schedule: s_tir.Schedule, result: str, row_axis: int, tile_rows: int, tile_columns: int
) -> None:
    """Tile block `result` (columns innermost, rows at `row_axis`) and its block ``product``."""
    block = schedule.get_sblock(result)
    loops = schedule.get_loops(block)
    outer = [loop for axis, loop in enumerate(loops[:-1]) if axis != row_axis]
    mo, mi = schedule.split(loops[row_axis], [None, tile_rows])
    no, ni = schedule.split(loops[-1], [None, tile_columns])
    schedule.reorder(*outer, no, mo, mi, ni)
    product = schedule.get_sblock("product")
    schedule.compute_at(product, mo, preserve_unit_loops=True)
    schedule.set_scope(product, 0, "local")
    i, j, k = schedule.get_loops(product)[-3:]
    schedule.reorder(k, i, j)
    schedule.vectorize(j)
    schedule.unroll(i)
    schedule.vectorize(ni)
    schedule.unroll(mi)
    # One column panel of the right operand serves all rows before the next one is touched.
    schedule.parallel(schedule.fuse(*outer, no, mo))
    initial = schedule.decompose_reduction(product, k)
    i0, j0 = schedule.get_loops(initial)[-2:]
    schedule.vectorize(j0)
    schedule.unroll(i0)


def linear(rows: int, inner: int, outputs: int, tile: Tile) -> tirx.PrimFunc:
    """Linear layer with packed weights.

    Operands: x [rows, inner], weight [panels, inner, columns of the tile], bias [outputs];
    result [rows, outputs].
    """
    width = tile.columns
    height = tile.balanced(rows)
    x = te.placeholder((rows, inner), FLOAT, "x")
    weight = te.placeholder((-(-outputs // width), inner, width), FLOAT, "weight")
    bias = te.placeholder((outputs,), FLOAT, "bias")
    product = _tiled_product(
        (),
        rows,
        outputs,
        inner,
        lambda m, k: x[m, k],
        lambda panel, k, column: weight[panel, k, column],
        height,
        width,
    )
    result = te.compute(
        (rows, outputs),
        lambda m, n: product[m // height, n // width, m % height, n % width] + bias[n],
        name="linear",
    )
    schedule = _function([x, weight, bias, result])
    _schedule_product(schedule, "linear", 0, height, width)
    return _finish(schedule)


def attention_scores(
    batch: int, length: int, heads: int, width: int, scale: float, tile: Tile
) -> tirx.PrimFunc:
    """Scaled products of queries and keys.

    Operands: q, k [batch, length, heads * width]; result [batch, heads, length, padded length].

    The last axis is padded to whole tiles; the padding holds copies that the softmax ignores.
    """
    columns = tile.columns
    height = tile.balanced(length)
    panels = -(-length // columns)
    q = te.placeholder((batch, length, heads * width), FLOAT, "q")
    k = te.placeholder((batch, length, heads * width), FLOAT, "k")
    packed = te.compute(
        (batch, heads, panels, width, columns),
        lambda b, h, jo, d, ji: k[b, tirx.min(jo * columns + ji, length - 1), h * width + d],
        name="packed",
    )
    product = _tiled_product(
        (batch, heads),
        length,
        length,
        width,
        lambda b, h, m, d: q[b, m, h * width + d],
        lambda b, h, panel, d, column: packed[b, h, panel, d, column],
        height,
        columns,
    )
    result = te.compute(
        (batch, heads, length, panels * columns),
        lambda b, h, i, j: (
            product[b, h, i // height, j // columns, i % height, j % columns]
            * tirx.const(scale, FLOAT)
        ),
        name="scores",
    )
    schedule = _function([q, k, result])
    _schedule_product(schedule, "scores", 2, height, columns)
    loops = schedule.get_loops(schedule.get_sblock("packed"))
    schedule.vectorize(loops[-1])
    schedule.parallel(schedule.fuse(*loops[:-2]))
    return _finish(schedule)


def attention_softmax(
    batch: int, length: int, heads: int, padded: int, tile: Tile, masked: bool = True
) -> tirx.PrimFunc:
    """Masked softmax over the keys.

    Operands: scores [batch, heads, length, padded], mask [batch, length] int64 if `masked`; result
    like scores.

    Masked and padded keys get exactly 0, and a row without keys is all 0.
    """
    lanes = tile.lanes
    scores = te.placeholder((batch, heads, length, padded), FLOAT, "scores")
    mask = te.placeholder((batch, length), "int64", "mask")

    def is_key(b: tirx.Var, j: tirx.Var) -> tirx.PrimExpr:
        if not masked:
            return j < length
        return tirx.all(j < length, mask[b, tirx.min(j, length - 1)] != 0)

    keep = te.compute(
        (batch, padded),
        lambda b, j: tirx.Select(
            is_key(b, j),
            tirx.const(1.0, FLOAT),
            tirx.const(0.0, FLOAT),
        ),
        name="keep",
    )
    rows = (batch, heads, length)
    chunk = te.reduce_axis((0, padded // lanes), name="chunk")
    highest_lane = te.compute(
        (*rows, lanes),
        lambda b, h, i, lane: te.max(
            tirx.Select(
                keep[b, chunk * lanes + lane] > 0,
                scores[b, h, i, chunk * lanes + lane],
                tirx.min_value(FLOAT),
            ),
            axis=chunk,
        ),
        name="highest_lane",
    )
    lane_max = te.reduce_axis((0, lanes), name="lane")
    highest = te.compute(
        rows, lambda b, h, i: te.max(highest_lane[b, h, i, lane_max], axis=lane_max), name="highest"
    )
    difference = te.compute(
        scores.shape,
        lambda b, h, i, j: tirx.min(scores[b, h, i, j] - highest[b, h, i], tirx.const(0.0, FLOAT)),
        name="difference",
    )
    raised = topi.fast_exp(difference)
    power = te.compute(
        scores.shape, lambda b, h, i, j: raised[b, h, i, j] * keep[b, j], name="power"
    )
    chunk_sum = te.reduce_axis((0, padded // lanes), name="chunk")
    total_lane = te.compute(
        (*rows, lanes),
        lambda b, h, i, lane: te.sum(power[b, h, i, chunk_sum * lanes + lane], axis=chunk_sum),
        name="total_lane",
    )
    lane_sum = te.reduce_axis((0, lanes), name="lane")
    total = te.compute(
        rows, lambda b, h, i: te.sum(total_lane[b, h, i, lane_sum], axis=lane_sum), name="total"
    )
    result = te.compute(
        scores.shape,
        lambda b, h, i, j: (
            power[b, h, i, j]
            * (tirx.const(1.0, FLOAT) / tirx.max(total[b, h, i], tirx.const(1e-30, FLOAT)))
        ),
        name="softmax",
    )
    schedule = _function([scores, *([mask] if masked else []), result])
    schedule.compute_inline(schedule.get_sblock("difference"))
    schedule.compute_inline(schedule.get_sblock(raised.op.name))
    _schedule_rows(schedule, "softmax", 3, lanes)
    return _finish(schedule)


def attention_context(
    batch: int, length: int, heads: int, width: int, padded: int, tile: Tile
) -> tirx.PrimFunc:
    """Sum of the values, weighted.

    Operands: probabilities [batch, heads, length, padded], v [batch, length, heads * width];
    result [batch, length, heads, width].
    """
    columns = _divisor(width, tile.columns)
    if columns < tile.lanes:
        columns = width  # an odd width: one panel per head
    height = tile.balanced(length)
    probabilities = te.placeholder((batch, heads, length, padded), FLOAT, "probabilities")
    v = te.placeholder((batch, length, heads * width), FLOAT, "v")
    product = _tiled_product(
        (batch, heads),
        length,
        width,
        length,
        lambda b, h, m, j: probabilities[b, h, m, j],
        lambda b, h, panel, j, column: v[b, j, h * width + panel * columns + column],
        height,
        columns,
    )
    result = te.compute(
        (batch, length, heads, width),
        lambda b, i, h, n: product[b, h, i // height, n // columns, i % height, n % columns],
        name="context",
    )
    schedule = _function([probabilities, v, result])
    _schedule_product(schedule, "context", 1, height, columns)
    return _finish(schedule)


def layer_norm(rows: int, channels: int, epsilon: float, tile: Tile) -> tirx.PrimFunc:
    """Layer normalisation.

    Operands: x [rows, channels], gamma [channels], beta [channels]; result like x.
    """
    lanes = _divisor(channels, tile.lanes)
    x = te.placeholder((rows, channels), FLOAT, "x")
    gamma = te.placeholder((channels,), FLOAT, "gamma")
    beta = te.placeholder((channels,), FLOAT, "beta")
    scale = tirx.const(1.0 / channels, FLOAT)
    chunk = te.reduce_axis((0, channels // lanes), name="chunk")
    total_lane = te.compute(
        (rows, lanes),
        lambda m, lane: te.sum(x[m, chunk * lanes + lane], axis=chunk),
        name="total_lane",
    )
    lane_sum = te.reduce_axis((0, lanes), name="lane")
    total = te.compute((rows,), lambda m: te.sum(total_lane[m, lane_sum], axis=lane_sum), "total")
    chunk_square = te.reduce_axis((0, channels // lanes), name="chunk")

    def centred(m: tirx.PrimExpr, c: tirx.PrimExpr) -> tirx.PrimExpr:
        return x[m, c] - total[m] * scale

    square_lane = te.compute(
        (rows, lanes),
        lambda m, lane: te.sum(
            centred(m, chunk_square * lanes + lane) * centred(m, chunk_square * lanes + lane),
            axis=chunk_square,
        ),
        name="square_lane",
    )
    lane_square = te.reduce_axis((0, lanes), name="lane")
    square = te.compute(
        (rows,), lambda m: te.sum(square_lane[m, lane_square], axis=lane_square), name="square"
    )
    factor = te.compute(
        (rows,),
        lambda m: tirx.const(1.0, FLOAT) / te.sqrt(square[m] * scale + tirx.const(epsilon, FLOAT)),
        name="factor",
    )
    result = te.compute(
        (rows, channels),
        lambda m, c: centred(m, c) * factor[m] * gamma[c] + beta[c],
        name="layer_norm",
    )
    schedule = _function([x, gamma, beta, result])
    _schedule_rows(schedule, "layer_norm", 1, lanes)
    return _finish(schedule)


def _schedule_rows(schedule: s_tir.Schedule, result: str, rows: int, lanes: int) -> None:
    """Compute everything that `result` needs row by row; its first `rows` loops are parallel."""
    block = schedule.get_sblock(result)
    row = schedule.fuse(*schedule.get_loops(block)[:rows])
    schedule.parallel(row)
    stages = [
        child
        for child in schedule.get_child_blocks(schedule.get_sblock("root"))
        if schedule.get(child).name_hint != result
    ]
    for stage in reversed(stages):
        if schedule.get(stage).name_hint == "keep":
            continue  # one row per batch serves all heads
        schedule.compute_at(stage, row, preserve_unit_loops=True)
    for stage in [*stages, block]:
        loops = schedule.get_loops(stage)
        name = schedule.get(stage).name_hint
        if name.endswith("_lane"):
            chunk, lane = loops[-1], loops[-2]
            schedule.reorder(chunk, lane)
            schedule.vectorize(lane)
            initial = schedule.decompose_reduction(stage, chunk)
            schedule.vectorize(schedule.get_loops(initial)[-1])
        elif name in (result, "power", "keep"):
            extent = int(schedule.get(loops[-1]).extent)
            _, inner = schedule.split(loops[-1], [None, _divisor(extent, lanes)])
            schedule.vectorize(inner)


def _injective(outputs: Sequence[te.Tensor], result: str, lanes: int) -> tirx.PrimFunc:
    """Inline all other stages into `result`, vectorise its last axis, parallelise the rest."""
    schedule = _function(outputs)
    for child in schedule.get_child_blocks(schedule.get_sblock("root")):
        if schedule.get(child).name_hint != result:
            schedule.compute_inline(child)
    loops = schedule.get_loops(schedule.get_sblock(result))
    extent = int(schedule.get(loops[-1]).extent)
    outer, inner = schedule.split(loops[-1], [None, _divisor(extent, lanes)])
    schedule.vectorize(inner)
    schedule.parallel(schedule.fuse(*loops[:-1], outer))
    return _finish(schedule)


def embedding(rows: int, vocabulary: int, channels: int, tile: Tile) -> tirx.PrimFunc:
    """Rows of a table.

    Operands: table [vocabulary, channels], ids [rows] int64; result [rows, channels].
    """
    table = te.placeholder((vocabulary, channels), FLOAT, "table")
    ids = te.placeholder((rows,), "int64", "ids")
    result = te.compute((rows, channels), lambda m, c: table[ids[m], c], name="embedding")
    return _injective([table, ids, result], "embedding", tile.lanes)


def add(size: int, tile: Tile) -> tirx.PrimFunc:
    """Sum of two tensors [size], flattened."""
    a = te.placeholder((size,), FLOAT, "a")
    b = te.placeholder((size,), FLOAT, "b")
    return _injective(
        [a, b, te.compute((size,), lambda i: a[i] + b[i], name="add")], "add", tile.lanes
    )


def activation(kind: str, size: int, tile: Tile) -> tirx.PrimFunc:
    """Activation of a tensor [size], flattened; `kind` is gelu_erf, gelu_tanh, relu or tanh."""
    x = te.placeholder((size,), FLOAT, "x")
    half = tirx.const(0.5, FLOAT)
    one = tirx.const(1.0, FLOAT)
    if kind == "relu":
        result = te.compute(x.shape, lambda i: tirx.max(x[i], tirx.const(0.0, FLOAT)), name=kind)
    elif kind == "tanh":
        curve = topi.fast_tanh(x)
        result = te.compute(x.shape, lambda i: curve[i], name=kind)
    elif kind == "gelu_erf":
        scaled = te.compute(x.shape, lambda i: x[i] * tirx.const(0.5**0.5, FLOAT), name="scaled")
        curve = topi.fast_erf(scaled)
        result = te.compute(x.shape, lambda i: half * x[i] * (one + curve[i]), name=kind)
    else:
        scaled = te.compute(
            x.shape,
            lambda i: (
                tirx.const(0.7978845608028654, FLOAT)
                * (x[i] + tirx.const(0.044715, FLOAT) * x[i] * x[i] * x[i])
            ),
            name="scaled",
        )
        curve = topi.fast_tanh(scaled)
        result = te.compute(x.shape, lambda i: half * x[i] * (one + curve[i]), name=kind)
    return _injective([x, result], kind, tile.lanes)


def position_ids(
    batch: int, length: int, kind: str, offset: int, padding_index: int
) -> tirx.PrimFunc:
    """Positions of input_ids [batch, length] int64, same shape and type."""
    ids = te.placeholder((batch, length), "int64", "input_ids")
    return _finish(_function([ids, position_ids_te(ids, kind, offset, padding_index)]))
