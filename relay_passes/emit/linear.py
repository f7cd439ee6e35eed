"""Emission of `integer.linear`: the packed matrix product and its bias."""

from __future__ import annotations

import numpy as np
from tvm import te, tirx

from ..errors import LoweringError
from .context import KernelContext
from .stage import Stage, define


def product_bounds(weight: np.ndarray, low: int, high: int) -> tuple[int, int]:
    """Bounds of ``sum_k x[k] weight[n, k]``, and of all its partial sums, for x in [low, high].

    Parameters
    ----------
    weight
        [N, K] integers.
    low, high
        Bounds of x.

    Returns
    -------
    low, high
        Exact where the interval of x contains 0, sound otherwise.
    """
    low, high = min(low, 0), max(high, 0)
    wide = weight.astype(np.int64)
    positive = np.maximum(wide, 0).sum(axis=1)
    negative = np.minimum(wide, 0).sum(axis=1)
    smallest = (positive * low + negative * high).min(initial=0)
    largest = (positive * high + negative * low).max(initial=0)
    return int(smallest), int(largest)


def operand(context: KernelContext, x: Stage, layer: str) -> Stage:
    """Bring the activation operand to what the instruction wants, by a copy only where needed.

    Parameters
    ----------
    context
        The kernel being emitted; learns whether there is a copy.
    x
        [M, K] int8 or uint8.
    layer
        Name for messages.

    Returns
    -------
    Stage
        [padded M, padded K] of the layout's ``lhs_dtype``.
    """
    layout = context.layout
    rows, depth = x.shape
    tile, padded_rows = layout.row_tile(rows)
    context.attributes["ibert.row_tile"] = tile
    padded_depth = layout.padded_depth(depth)
    dtype = str(x.tensor.dtype)
    if dtype != layout.lhs_dtype and not layout.widens_lhs:
        raise LoweringError(
            what=f"a matrix operand is {dtype}, the instruction takes {layout.lhs_dtype}",
            where=layer,
            why="the pass offset_activations did not run before emission",
            todo="use ibert_tvm.relay_passes.passes.pipeline, which orders the passes",
        )
    whole = (rows, depth) == (padded_rows, padded_depth)
    # An instruction that takes several rows at once reads them from a copy that interleaves them.
    if dtype == layout.lhs_dtype and whole and layout.row_step == 1:
        return x
    context.attributes["ibert.lhs_copied"] = True

    def copy(row: tirx.Var, column: tirx.Var) -> tirx.PrimExpr:
        value = x.tensor[tirx.min(row, rows - 1), tirx.min(column, depth - 1)]
        value = value.astype(layout.lhs_dtype)
        if whole:
            return x.tensor[row, column].astype(layout.lhs_dtype)
        inside = tirx.all(row < rows, column < depth)
        return tirx.if_then_else(inside, value, tirx.const(0, layout.lhs_dtype))

    copied = te.compute((padded_rows, padded_depth), copy, name="lhs")
    return Stage(copied, min(x.low, 0), max(x.high, 0), x.arithmetic)


def _widened(context: KernelContext, packed: te.Tensor) -> te.Tensor:
    """Packed weight in the type that the instruction takes, by a copy only where needed."""
    dtype = context.layout.rhs_dtype
    if str(packed.dtype) == dtype:
        return packed
    return te.compute(packed.shape, lambda *index: packed(*index).astype(dtype), name="rhs")


def emit_linear(
    context: KernelContext, x: Stage, weight_name: str, bias: Stage, layer: str
) -> Stage:
    """Emit ``x weight^T + bias``.

    Parameters
    ----------
    context
        The kernel being emitted.
    x
        [M, K] activations.
    weight_name
        Name of the [N, K] int8 weight parameter, which is packed at compile time.
    bias
        [N] int32.
    layer
        Canonical name of the layer.

    Returns
    -------
    Stage
        [M, N] int32.
    """
    layout = context.layout
    weight = context.parameters[weight_name]
    columns = weight.shape[0]
    rows = x.shape[0]
    lhs = operand(context, x, layer)
    context.note_operands("accumulator", lhs.low, int(weight.min(initial=0)))
    padded_rows, padded_depth = lhs.shape
    packed = _widened(context, context.packed_weight(weight_name))
    lanes, step = layout.lanes, layout.depth
    k = te.reduce_axis((0, padded_depth), name="k")
    products = te.compute(
        (padded_rows, layout.padded_columns(columns)),
        lambda m, n: te.sum(
            lhs.tensor[m, k].astype("int32")
            * packed[n // lanes, k // step, n % lanes, k % step].astype("int32"),
            axis=k,
        ),
        name="accumulator",
    )
    accumulator = Stage(products, *product_bounds(weight, x.low, x.high), x.arithmetic)
    return define("biased", (rows, columns), lambda m, n: accumulator[m, n] + bias[n])
