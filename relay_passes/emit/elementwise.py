"""Emission of operators that work entry by entry, and of the table look-ups."""

from __future__ import annotations

from typing import Any

from tvm import te, tirx

from ..integer.attrs import (
    AddAttrs,
    AddPositionsAttrs,
    AddShortAttrs,
    EmbeddingAttrs,
    GeluAttrs,
    PatchesAttrs,
    PositionIdsAttrs,
    PrependTokensAttrs,
    ReluAttrs,
    RequantiseAttrs,
    RequantiseEvenAttrs,
    RequantiseShortAttrs,
    SelectTokenAttrs,
    SplitChannelsAttrs,
    TanhAttrs,
)
from ..spec.fixed_point import requantise, requantise_clamped
from ..spec.gelu import gelu_accurate, gelu_paper
from ..spec.released import requantise_even
from ..spec.short_requantise import requantise_short, saturating_sum
from ..spec.tanh import i_tanh
from ..spec.values import Ranged, maximum
from .context import KernelContext
from .packing import row_of_token
from .stage import Stage, define


def per_channel(constants: Stage, channel: Any) -> Ranged:
    """Constant of a channel, from an array with one entry per channel or one for all."""
    return constants[0] if constants.shape[0] == 1 else constants[channel]


def emit_requantise(
    context: KernelContext, attrs: RequantiseAttrs, x: Stage, multiplier: Stage
) -> Stage:
    """`integer.requantise`: multiply, shift, offset, clamp."""
    return define(
        "requantised",
        x.shape,
        lambda *index: requantise_clamped(
            x[index],
            per_channel(multiplier, index[-1]),
            attrs.shift,
            attrs.zero_point,
            attrs.low,
            attrs.high,
        ),
        attrs.dtype,
    )


def emit_requantise_short(
    context: KernelContext, attrs: RequantiseShortAttrs, x: Stage, multiplier: Stage, shift: Stage
) -> Stage:
    """`integer.requantise_short`: shift, saturate, multiply in Q15, offset, clamp."""
    return define(
        "requantised",
        x.shape,
        lambda *index: requantise_short(
            x[index],
            per_channel(multiplier, index[-1]),
            per_channel(shift, index[-1]),
            attrs.shift,
            attrs.zero_point,
            attrs.low,
            attrs.high,
        ),
        attrs.dtype,
    )


def emit_requantise_even(
    context: KernelContext, attrs: RequantiseEvenAttrs, x: Stage, multiplier: Stage, shift: Stage
) -> Stage:
    """`integer.requantise_even`: multiply in parts, shift per channel, offset, clamp."""
    return define(
        "requantised",
        x.shape,
        lambda *index: requantise_even(
            x[index],
            per_channel(multiplier, index[-1]),
            per_channel(shift, index[-1]),
            attrs.split,
            attrs.zero_point,
            attrs.low,
            attrs.high,
        ),
        attrs.dtype,
    )


def emit_gelu(context: KernelContext, attrs: GeluAttrs, x: Stage, *constants: Stage) -> Stage:
    """`integer.gelu` in both forms."""
    accurate = attrs.constants
    if accurate is not None:
        return define("gelu", x.shape, lambda *index: gelu_accurate(x[index], accurate))
    return define(
        "gelu",
        x.shape,
        lambda *index: gelu_paper(
            x[index], *(per_channel(array, index[-1]) for array in constants)
        ),
        "int64",
    )


def emit_relu(context: KernelContext, attrs: ReluAttrs, x: Stage) -> Stage:
    """`integer.relu`."""
    return define("relu", x.shape, lambda *index: maximum(x[index], 0), str(x.tensor.dtype))


def emit_tanh(context: KernelContext, attrs: TanhAttrs, x: Stage) -> Stage:
    """`integer.tanh`."""
    return define(
        "tanh",
        x.shape,
        lambda *index: i_tanh(x[index], attrs.exponential, attrs.fraction_bits),
        "int32",
    )


def emit_add(context: KernelContext, attrs: AddAttrs, a: Stage, b: Stage) -> Stage:
    """`integer.add`."""
    return define("sum", a.shape, lambda *index: a[index] + b[index], "int32")


def emit_add_short(context: KernelContext, attrs: AddShortAttrs, a: Stage, b: Stage) -> Stage:
    """`integer.add_short`: the sum, clamped."""
    return define(
        "sum",
        a.shape,
        lambda *index: saturating_sum(a[index], b[index], attrs.low, attrs.high),
        attrs.dtype,
    )


def emit_add_positions(
    context: KernelContext, attrs: AddPositionsAttrs, x: Stage, table: Stage
) -> Stage:
    """`integer.add_positions`: row s of a table to token s of every sequence."""
    length = table.shape[0]
    return define(
        "sum", x.shape, lambda row, channel: x[row, channel] + table[row % length, channel], "int32"
    )


def emit_prepend_tokens(
    context: KernelContext, attrs: PrependTokensAttrs, x: Stage, tokens: Stage
) -> Stage:
    """`integer.prepend_tokens`: the same rows before every sequence."""
    count, channels = tokens.shape
    old = x.shape[0] // context.batch
    new = old + count

    def entry(row: tirx.Var, channel: tirx.Var) -> Ranged:
        batch, token = row // new, row % new
        value = tirx.if_then_else(
            token < count,
            tokens.tensor(tirx.min(token, count - 1), channel),
            x.tensor(batch * old + tirx.max(token - count, 0), channel).astype("int32"),
        )
        return x.value(min(x.low, tokens.low), max(x.high, tokens.high), value)

    return define("tokens", (context.batch * new, channels), entry, "int32")


def emit_patches(context: KernelContext, attrs: PatchesAttrs, pixels: Stage) -> Stage:
    """`integer.patches`: pixels gathered patch by patch, in the order of convolution weights."""
    batch, channels, height, width = pixels.shape
    tall, wide = attrs.patch_height, attrs.patch_width
    across, area = width // wide, tall * wide
    count = height // tall * across

    def entry(row: tirx.Var, column: tirx.Var) -> Ranged:
        patch, inside = row % count, column % area
        return pixels[
            row // count,
            column // area,
            patch // across * tall + inside // wide,
            patch % across * wide + inside % wide,
        ]

    return define("patches", (batch * count, channels * area), entry, str(pixels.tensor.dtype))


def emit_embedding(
    context: KernelContext, attrs: EmbeddingAttrs, ids: Stage, table: Stage, multiplier: Stage
) -> Stage:
    """`integer.embedding`: one row of the table per token, requantised with the row's multiplier.

    Ids are checked by the runtime; here they are clamped, so that no id can read outside the table.
    """
    rows, channels = table.shape
    seq_len = ids.shape[1]

    def entry(token: tirx.Var, channel: tirx.Var) -> Ranged:
        index = ids.tensor(token // seq_len, token % seq_len).astype("int32")
        row = tirx.max(tirx.min(index, tirx.const(rows - 1, "int32")), tirx.const(0, "int32"))
        factor = multiplier[0] if multiplier.shape[0] == 1 else multiplier[row]
        return requantise(table[row, channel], factor, attrs.shift)

    tokens = ids.shape[0] * seq_len
    return define("embedded", (tokens, channels), entry, "int32")


def emit_position_ids(context: KernelContext, attrs: PositionIdsAttrs, ids: Stage) -> Stage:
    """`integer.position_ids`: counting from an offset, or counting the real tokens."""
    batch, seq_len = ids.shape
    if attrs.kind == "absolute":
        return define(
            "positions",
            (batch, seq_len),
            lambda row, column: ids.value(
                attrs.offset, attrs.offset + seq_len - 1, column.astype("int32") + attrs.offset
            ),
            "int32",
        )
    k = te.reduce_axis((0, seq_len), name="k")

    def is_token(row: tirx.Expr, column: tirx.Expr) -> tirx.Expr:
        value = ids.tensor(row, column)
        return (value != tirx.const(attrs.padding_index, str(ids.tensor.dtype))).astype("int32")

    counted = te.compute(
        (batch, seq_len),
        lambda row, column: te.sum(
            tirx.Select(k <= column, is_token(row, k), tirx.const(0, "int32")), axis=k
        ),
        name="counted",
    )
    return define(
        "positions",
        (batch, seq_len),
        lambda row, column: ids.value(
            attrs.padding_index,
            attrs.padding_index + seq_len,
            counted(row, column) * is_token(row, column) + attrs.padding_index,
        ),
        "int32",
    )


def emit_split_channels(context: KernelContext, attrs: SplitChannelsAttrs, x: Stage) -> Stage:
    """`integer.split_channels`: a run of channels, read in place by whatever follows."""
    rows, channels = x.shape
    width = channels // attrs.parts
    tensor = te.compute(
        (rows, width),
        lambda row, channel: x.tensor(row, channel + attrs.index * width),
        name="run_of_channels",
    )
    return Stage(tensor, x.low, x.high, x.arithmetic)


def emit_select_token(
    context: KernelContext, attrs: SelectTokenAttrs, x: Stage, *slots: Stage
) -> Stage:
    """`integer.select_token`: one token of every sequence; x is packed if there are slots."""
    return define(
        "selected",
        (context.batch, x.shape[1]),
        lambda row, channel: x[row_of_token(slots, context.seq_len, row, attrs.index), channel],
        str(x.tensor.dtype),
    )
