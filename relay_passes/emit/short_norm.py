"""Emission of `integer.layer_norm_short`: statistics of a row, then its normalised entries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import te

from ..integer.attrs import ShortLayerNormAttrs
from ..spec import short_layer_norm as norm
from ..spec.values import INT32, Ranged, trace
from .context import KernelContext
from .row_norm import row_sum
from .stage import Stage, define, expression

_GROUP = 8


def emit_layer_norm_short(
    context: KernelContext, attrs: ShortLayerNormAttrs, x: Stage, gain: Stage, offset: Stage
) -> Stage:
    """Emit i-layer-norm of a 15-bit input over the last axis.

    Parameters
    ----------
    context
        The kernel being emitted.
    attrs
        Attributes of the operator.
    x
        [tokens, C].
    gain, offset
        [C] int32.

    Returns
    -------
    Stage
        [tokens, C] of the requested type.
    """
    rows, channels = x.shape
    k = attrs.constants

    def bounded(row: Any, channel: Any) -> Ranged:
        return norm.bounded(x[row, channel])

    total = row_sum("sum", rows, channels, bounded, attrs.name)
    mean = define("mean", (rows,), lambda row: norm.mean_of(total[row], channels), "int32")

    def deviation(row: Any, channel: Any) -> Ranged:
        return norm.deviation(bounded(row, channel), mean[row])

    squares = _square_sum(context, attrs, (rows, channels), total, mean, bounded)
    half = define("half_bits", (rows,), lambda row: norm.root_half_bits(squares[row], k), "int32")
    root = define(
        "square_root", (rows,), lambda row: norm.root(squares[row], half[row], k), "int32"
    )
    bits = define("root_bits", (rows,), lambda row: norm.root_bits(root[row], k), "int32")
    inverse = define("inverse", (rows,), lambda row: norm.reciprocal(root[row], bits[row]), "int32")
    return define(
        "normalised",
        (rows, channels),
        lambda row, channel: norm.normalise(
            deviation(row, channel),
            bits[row],
            inverse[row],
            gain[channel],
            offset[channel],
            k,
            attrs.shift,
            attrs.low,
            attrs.high,
        ),
        attrs.dtype,
    )


def _square_sum(
    context: KernelContext,
    attrs: ShortLayerNormAttrs,
    shape: tuple[int, int],
    total: Stage,
    mean: Stage,
    entry: Callable[[Any, Any], Ranged],
) -> Stage:
    """Sum of squared deviations [rows]; without vectors, what saves an operation per entry."""
    if not context.layout.scalar:
        return row_sum(
            "square_sum",
            *shape,
            lambda row, channel: norm.square(norm.deviation(entry(row, channel), mean[row])),
            attrs.name,
        )
    rows, channels = shape
    squares = _grouped_squares(rows, channels, entry)
    return define(
        "square_sum",
        (rows,),
        lambda row: norm.sum_about_mean(squares[row], total[row], mean[row], channels),
        "int64",
    )


def _grouped_squares(rows: int, channels: int, entry: Callable[[Any, Any], Ranged]) -> Stage:
    """Sum of squares [rows], int64, of groups that fit 32 bits: one product and sum per entry."""
    largest = norm.INPUT_LIMIT**2
    limit = min(_GROUP, INT32[1] // largest)
    group = next(size for size in range(limit, 0, -1) if channels % size == 0)
    j = te.reduce_axis((0, group), name="j")

    squares: list[Ranged] = []

    def squared(row: Any, part: Any) -> Any:
        channel = part * group + j.var
        squares.append(trace(lambda: norm.square(entry(row, channel))))
        return expression(squares[0], "int32")

    groups = te.compute(
        (rows, channels // group),
        lambda row, part: te.sum(squared(row, part), axis=j),
        name="square_groups",
    )
    g = te.reduce_axis((0, channels // group), name="g")
    total = te.compute(
        (rows,), lambda row: te.sum(groups(row, g).astype("int64"), axis=g), name="squares"
    )
    return Stage(total, 0, largest * channels, squares[0].arithmetic)
