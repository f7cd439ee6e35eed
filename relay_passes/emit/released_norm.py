"""Emission of `integer.released_layer_norm`: the stages that the accurate form has, other sums."""

from __future__ import annotations

from typing import Any

from ..integer.attrs import ReleasedLayerNormAttrs
from ..spec.released import layer_norm
from ..spec.values import Ranged, known
from .context import KernelContext
from .row_norm import row_sum
from .stage import Stage, define


def emit_released_layer_norm(
    context: KernelContext, attrs: ReleasedLayerNormAttrs, x: Stage, offset: Stage
) -> Stage:
    """Emit the released i-layer-norm over the last axis.

    Parameters
    ----------
    context
        The kernel being emitted.
    attrs
        Attributes of the operator.
    x
        [tokens, C].
    offset
        [C] int64.

    Returns
    -------
    Stage
        [tokens, C] int64.
    """
    rows, channels = x.shape
    constants = attrs.constants
    total = row_sum("sum", rows, channels, lambda row, channel: x[row, channel], attrs.name)
    mean = define("mean", (rows,), lambda row: layer_norm.mean_of(total[row], channels), "int32")

    def deviation(row: Any, channel: Any) -> Ranged:
        # A mean lies among the values; that its interval is that of x, the sum's cannot tell.
        return x[row, channel] - known(mean[row], x.low, x.high)

    squares = row_sum(
        "square_sum",
        rows,
        channels,
        lambda row, channel: layer_norm.square(deviation(row, channel), constants),
        attrs.name,
    )
    half_bits = define(
        "half_bits", (rows,), lambda row: layer_norm.root_half_bits(squares[row]), "int32"
    )
    inverse = define(
        "inverse",
        (rows,),
        lambda row: layer_norm.factor(squares[row], half_bits[row], constants),
        "int64",
    )
    return define(
        "normalised",
        (rows, channels),
        lambda row, channel: layer_norm.normalise(
            deviation(row, channel), inverse[row], offset[channel]
        ),
        "int64",
    )
