"""Emission of `integer.layer_norm_short`: statistics of a row, then its normalised entries."""

from __future__ import annotations

from typing import Any

from ..integer.attrs import ShortLayerNormAttrs
from ..spec import short_layer_norm as norm
from ..spec.values import Ranged
from .context import KernelContext
from .row_norm import row_sum
from .stage import Stage, define


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

    squares = row_sum(
        "square_sum",
        rows,
        channels,
        lambda row, channel: norm.square(deviation(row, channel)),
        attrs.name,
    )
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
