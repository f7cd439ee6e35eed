"""Emission of `integer.mean_pool`: the masked mean over the tokens of each sequence."""

from __future__ import annotations

from typing import Any

from tvm import te, tirx

from ..integer.attrs import MeanPoolAttrs
from ..spec import pooling
from ..spec.values import Ranged
from .context import KernelContext
from .packing import row_of_token
from .stage import Stage, define


def emit_mean_pool(
    context: KernelContext, attrs: MeanPoolAttrs, x: Stage, *optional: Stage
) -> Stage:
    """Emit the mean: sum of unmasked tokens, count, one division per sequence.

    Parameters
    ----------
    context
        The kernel being emitted.
    attrs
        Attributes of the operator.
    x
        [tokens, C].
    optional
        The mask [batch, seq_len], where 0 marks padding (without one all tokens count), and of a
        packed x the slots of its tokens.

    Returns
    -------
    Stage
        [batch, C] int32.
    """
    mask, slots = optional[:1], optional[1:]
    batch, seq_len, channels = context.batch, context.seq_len, x.shape[1]
    s = te.reduce_axis((0, seq_len), name="s")
    t = te.reduce_axis((0, seq_len), name="t")

    def is_token(row: Any, token: Any) -> tirx.Expr:
        return (mask[0].tensor(row, token) != 0).astype("int32")

    def weighed(row: Any, token: Any, channel: Any) -> tirx.Expr:
        at = row_of_token(slots, seq_len, row, token)
        value = x.tensor(at, channel).astype("int32")
        return value * is_token(row, token) if mask else value

    total = te.compute(
        (batch, channels),
        lambda b, c: te.sum(weighed(b, s, c), axis=s),
        name="token_sum",
    )
    sums = Stage(total, min(x.low, 0) * seq_len, max(x.high, 0) * seq_len, x.arithmetic)
    if mask:
        counted = te.compute((batch,), lambda b: te.sum(is_token(b, t), axis=t), name="count")
        count = Stage(counted, 0, seq_len, x.arithmetic)
    else:
        count = define("count", (batch,), lambda b: Ranged(seq_len, seq_len), "int32")
    reciprocal = define(
        "reciprocal", (batch,), lambda b: pooling.reciprocal_of_count(count[b]), "int32"
    )
    return define(
        "mean",
        (batch, channels),
        lambda b, c: pooling.mean_of_tokens(
            sums[b, c], reciprocal[b], attrs.fraction_bits, entry=Ranged(x.low, x.high)
        ),
        "int32",
    )
