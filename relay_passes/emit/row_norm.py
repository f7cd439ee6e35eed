"""Emission of `integer.layer_norm`: statistics of a row, then its normalised entries."""

from __future__ import annotations

from typing import Any

from tvm import te

from ..errors import RangeError
from ..integer.attrs import LayerNormAttrs
from ..spec import layer_norm
from ..spec.values import INT64, Ranged, trace
from .context import KernelContext
from .stage import Stage, define, expression


def row_sum(name: str, rows: int, channels: int, entry: Any, layer: str) -> Stage:
    """Sum over the channels of a row of a value of the specification.

    Parameters
    ----------
    name
        Block name.
    rows, channels
        Extents.
    entry
        ``entry(row, channel)``, a value of the specification.
    layer
        Name for messages.

    Returns
    -------
    Stage
        [rows].

    Raises
    ------
    RangeError
        If the sum might leave 64 bits.
    """
    bounds: list[Ranged] = []
    k = te.reduce_axis((0, channels), name="k")

    def compute(row: Any) -> Any:
        value = trace(entry, row, k.var)
        bounds.append(value)
        low, high = min(value.low, 0) * channels, max(value.high, 0) * channels
        if low < INT64[0] or high > INT64[1]:
            raise RangeError(
                what="the sum over a row does not fit 64 bits",
                where=layer,
                why=f"{channels} channels of up to {max(abs(value.low), abs(value.high))}",
                todo="lower the input limit of the layer norm",
            )
        return te.sum(expression(value, Ranged(low, high).dtype), axis=k)

    tensor = te.compute((rows,), compute, name=name)
    low, high = min(bounds[0].low, 0) * channels, max(bounds[0].high, 0) * channels
    return Stage(tensor, low, high, bounds[0].arithmetic)


def emit_layer_norm(
    context: KernelContext, attrs: LayerNormAttrs, x: Stage, gain: Stage, offset: Stage
) -> Stage:
    """Emit i-layer-norm over the last axis.

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
    constants = attrs.constants

    def bounded(row: Any, channel: Any) -> Ranged:
        return layer_norm.bounded(x[row, channel], constants)

    total = row_sum("sum", rows, channels, bounded, attrs.name)
    mean = define("mean", (rows,), lambda row: layer_norm.mean_of(total[row], channels), "int32")

    def deviation(row: Any, channel: Any) -> Ranged:
        return layer_norm.deviation(bounded(row, channel), mean[row])

    squares = row_sum(
        "square_sum",
        rows,
        channels,
        lambda row, channel: layer_norm.square(deviation(row, channel)),
        attrs.name,
    )
    half_bits = define(
        "half_bits",
        (rows,),
        lambda row: layer_norm.root_half_bits(squares[row], constants),
        "int32",
    )
    inverse = define(
        "inverse",
        (rows,),
        lambda row: layer_norm.inverse_std(squares[row], half_bits[row], constants),
        "int64",
    )
    return define(
        "normalised",
        (rows, channels),
        lambda row, channel: layer_norm.normalise(
            deviation(row, channel),
            inverse[row],
            gain[channel],
            offset[channel],
            constants,
            attrs.shift,
            attrs.low,
            attrs.high,
        ),
        attrs.dtype,
    )
