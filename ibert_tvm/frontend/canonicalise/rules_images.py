"""Rules of patch embeddings and tables of positions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from tvm import relax

from ibert_tvm.relay_passes.canonical import build

from . import views
from .emitter import Emitter, layer_of
from .engine import Rule
from .images import patch_axes
from .inputs import Ids, constant_array
from .operands import integer, integers, static_shape
from .values import (
    Embedded,
    FromInputs,
    Hidden,
    Linear,
    Mismatch,
    Pixels,
    Prepended,
    Table,
    Value,
    Weight,
)


def _conv2d(c: Emitter, call: relax.Call, operands: list[Any]) -> Value:
    pixels, weight = operands
    if not isinstance(pixels, Pixels) or not isinstance(weight, Weight):
        raise Mismatch("a convolution of something other than the images by a weight")
    channels, planes, tall, wide = weight.array.shape
    size = c.images[pixels.name]
    plain = (
        integers(call.attrs.strides) == [tall, wide]
        and not any(integers(call.attrs.padding))
        and integers(call.attrs.dilation) == [1, 1]
        and integer(call.attrs.groups) == 1
        and (str(call.attrs.data_layout), str(call.attrs.kernel_layout)) == ("NCHW", "OIHW")
        and planes == size[0]
    )
    if not plain:
        raise Mismatch(
            f"a convolution of {tall} x {wide} with strides {integers(call.attrs.strides)}, "
            f"padding {integers(call.attrs.padding)}, dilation {integers(call.attrs.dilation)} and "
            f"{integer(call.attrs.groups)} groups; only patches that do not overlap have a form"
        )
    if static_shape(call.args[0]) != (c.batch.extent, *size):
        raise Mismatch("a convolution of images that were moved before")
    rows, columns = size[1] // tall, size[2] // wide
    name = layer_of(weight.name)
    matrix = Weight(weight.name, weight.array.reshape(channels, -1), layer=name)
    patches = c.patches(pixels.name, tall, wide)
    source = Linear(name, channels, (*pixels.ops, c.op(call)), patches, matrix, None)
    axes = patch_axes(rows, columns)
    return Hidden(source, ((c.batch,), views.channel_axis(channels), *axes), layer=name)


def add_table(c: Emitter, x: Hidden, other: Weight | FromInputs, op: str) -> Hidden | None:
    """Add a table of one row per token; None if `other` is not one.

    Parameters
    ----------
    c : Emitter
        The function under construction.
    x : Hidden
        The other term.
    other : Weight or FromInputs
        Perhaps [tokens, channels], after axes of extent 1.
    op : str
        The operator.

    Returns
    -------
    Hidden or None
        The sum.

    Raises
    ------
    Mismatch
        If it is a table for the exported length only.
    """
    array = constant_array(other) if isinstance(other, FromInputs) else other.array
    if array is None or len(x.view) != 3 or not views.is_tokens(x.view[1]):
        return None
    tokens = views.merged(x.view[1])[0]
    if array.size != array.shape[-1] * tokens.extent or array.shape[-2:-1] != (tokens.extent,):
        return None
    channels = x.source.channels
    if array.shape[-1] != channels:
        return None
    c.require_all_channels(x)
    array = np.asarray(array.reshape(tokens.extent, channels), np.float32)
    name = other.name if isinstance(other, Weight) else f"{x.source.name}.positions"
    if tokens.kind == "patch":
        source = x.source
        if isinstance(source, Prepended) and source.table is None and x.factor == 1.0:
            positions = Weight(name, array)
            return replace(x, source=replace(source, name=name, table=positions), ops=())
        operands = (c.emit(x).var, c.weight(name, array))
        label, ops = c.unique(name), (*x.ops, op)
        emitted = c.record(build.add_positions, label, channels, ops, *operands)
        return Hidden(emitted, x.view, layer=x.layer)
    table = other.table if isinstance(other, Weight) else None
    if table is None and c.revisit is not None and isinstance(other, Weight):
        table = Table(array, 0)  # as long as the sequence, so nothing is cut
    if table is None:
        raise Mismatch(
            f"{name} has one row per token of the exported length, and is not cut out of a longer "
            "table"
        )
    rows = Weight(name, table.array, layer=layer_of(name))
    ids = c.positions(Ids("absolute", value=table.offset, has_batch=False), f"{name}.position_ids")
    source = Embedded(name, channels, (), rows, ids)
    view = ((c.seq_len,), views.channel_axis(channels))
    return c.add(x, Hidden(source, view, missing=c.rows, layer=layer_of(name)), (op,))


IMAGE_RULES: dict[str, Rule] = {
    "relax.nn.conv2d": _conv2d,
}
"""Rules by operator."""
