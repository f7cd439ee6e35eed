"""Rules of sums, products and other elementwise operators on hidden tensors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from . import views
from .builder import Builder, layer_of
from .computed import ConstantRow, Embedded, Linear, Prepended
from .inputs import Ids
from .mismatch import Mismatch
from .operands import Table
from .values import (
    Emitted,
    FromInputs,
    Given,
    Hidden,
    PerChannel,
    Pointwise,
    Tokens,
    Value,
    Weight,
    add,
    applied,
    multiply,
)

# Tables of positions: one row per token, added to a hidden tensor.


def add_table(c: Builder, x: Hidden, other: Given, op: str) -> Hidden | None:
    """Add a table of one row per token; None if `other` is not one.

    Parameters
    ----------
    c
        The function under construction.
    x
        The other term.
    other
        Perhaps [tokens, channels], or [rows, columns, channels], after axes of extent 1.
    op
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
    array = other.fixed()
    # Patches of images may still be in rows and columns.
    places = views.flatten(x.view[1:-1])
    if array is None or len(x.view) < 3 or not views.is_tokens(places):
        return None
    tokens = views.merged(places)[0]
    own = views.shape_of(x.view)[1:-1]
    if array.size != array.shape[-1] * tokens.extent or array.shape[-1 - len(own) : -1] != own:
        return None
    channels = x.source.channels
    if array.shape[-1] != channels:
        return None
    x.require_all_channels()
    array = np.asarray(array.reshape(tokens.extent, channels), np.float32)
    weight = other if isinstance(other, Weight) else None
    name = f"{x.source.name}.positions" if weight is None else weight.name
    if tokens.kind == "patch":
        source = x.source
        if isinstance(source, Prepended) and source.table is None and x.factor == 1.0:
            positions = Weight(name, array)
            return replace(x, source=replace(source, name=name, table=positions), ops=())
        given = (channels, (*x.ops, op), x.emit(c), Weight(name, array))
        return Hidden(Emitted.call(c, "add_positions", name, *given), x.view, layer=x.layer)
    table = None if weight is None else weight.table
    if table is None and c.revisit is not None and weight is not None:
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
    return add(c, x, Hidden(source, view, missing=c.rows, layer=layer_of(name)), (op,))


def per_channel(c: Builder, value: Value, channels: int, name: str) -> Weight:
    """Return `value` as a weight [channels]; a constant of the graph gets the name `name`."""
    weight = value.as_weight(c, name)
    array = weight.array
    if array.size == 1:
        array = np.broadcast_to(array.reshape(1), (channels,))
    if array.size != channels or (array.ndim > 1 and array.shape[-1] != channels):
        raise Mismatch(
            f"{weight.name} of shape {array.shape} is not one number per channel ({channels})"
        )
    return Weight(weight.name, array.reshape(channels), layer=weight.layer)


def _same_tensor(a: Pointwise, b: Pointwise) -> bool:
    return a.base.source is b.base.source and a.base.view == b.base.view


def limited(c: Builder, op: str, value: Tokens, other: FromInputs) -> Value | None:
    """Interpret the larger or smaller one of a hidden tensor and a number; None if it is none."""
    number = other.number()
    if number is None:
        return None
    bounds = (number, np.inf) if op == "relax.maximum" else (-np.inf, number)
    return value.bounded(c, op, *bounds)


def scaled_rows(c: Builder, op: str, x: Hidden, other: FromInputs) -> Value | None:
    """Interpret rows of a table times a number, as a table; None for anything else.

    So the norms and sums behind scaled embeddings read one table. Of another tensor the number may
    become a part of a function.
    """
    number = other.number() if isinstance(x.source, Embedded) else None
    if number is None:
        return None
    return x.after(op, source=x.source.times(c, x.factor * number), factor=1)


def with_number(_c: Builder, op: str, left: Value, right: Value) -> Pointwise | None:
    """Interpret an operator on a hidden tensor and a number; None if it is none."""
    step = 1 if isinstance(left, Tokens) else -1
    function, other = (left, right)[::step]
    number = other.number()
    if number is None or not isinstance(function, Tokens):
        return None
    x = function.lifted()
    samples, texts = (x.samples, number)[::step], (x.text, f"{number:g}")[::step]
    return applied(op, x, samples, texts, (*x.ops, op))


def added(c: Builder, op: str, value: Tokens, other: Given) -> Hidden:
    """Interpret the addition of a table of positions, or of one number per channel."""
    x = value.hidden(c)
    return add_table(c, x, other, op) or _bias(c, x, other, op)


def hidden_pair(c: Builder, op: str, left: Tokens, right: Tokens) -> Value:
    """Interpret an operator on two hidden tensors, or on two functions of one."""
    a, b = left.lifted(), right.lifted()
    if _same_tensor(a, b):
        result = applied(op, a, (a.samples, b.samples), (a.text, b.text), (*a.ops, *b.ops, op))
        return replace(result, parts=(left, right) if op == "relax.add" else ())
    if op == "relax.multiply":
        return multiply(c, left, right, (op,))
    if op != "relax.add":
        raise Mismatch(
            "two different hidden tensors are combined, and only sums and products have a form"
        )
    for one, other in ((left, right), (right, left)):
        if isinstance(one, Hidden) and isinstance(one.source, ConstantRow):
            target = other.hidden(c)
            shape = views.shape_of(target.view)
            if views.broadcast(one.view, shape, one.missing) != target.view:
                raise Mismatch("a constant row is added in another layout")
            return _bias(c, target, one.source.row, op)
    return add(c, left, right, (op,))


def _bias(c: Builder, x: Hidden, other: Given, op: str) -> Hidden:
    """Add one number per channel: a bias, or a constant row of an embedding sum."""
    other = _along_channels(c, x, other)
    source = x.source
    row = per_channel(c, other, source.channels, f"{source.name}.bias")
    if x.factor != 1.0:
        raise Mismatch("a bias is added after a scale")
    source.note_row(c, row)
    new = source.affine(c, PerChannel(row=row, ops=(*x.ops, op)))
    return Hidden(new, x.view, missing=x.missing, layer=x.layer)


def _along_channels(c: Builder, x: Hidden, other: Given) -> Given:
    """Return `other` with its channels last, where those of `x` are in other axes."""
    channels = x.source.channels
    last = bool(x.view) and views.merged(x.view[-1]) == views.channel_axis(channels)
    if last or not isinstance(other, Weight):
        x.require_all_channels()
        return other
    axes = [all(a.kind == "channel" for a in axis) and bool(axis) for axis in x.view]
    order = views.channel_order(views.flatten([x.view[i] for i in np.flatnonzero(axes)]), channels)
    shape = (1,) * (len(x.view) - other.array.ndim) + other.array.shape
    want = tuple(
        extent if of_channels else 1
        for extent, of_channels in zip(views.shape_of(x.view), axes, strict=True)
    )
    if order is None or shape != want:
        raise Mismatch(
            f"{other.name} of shape {other.array.shape} is not one number per channel of "
            f"{views.describe(x.view)}"
        )
    return replace(other, array=other.array.reshape(-1)[np.argsort(order)])


def channel_scale(c: Builder, op: str, value: Tokens, other: Weight) -> Hidden:
    """Multiply each channel by a number of its own, which a linear layer before it takes over."""
    x = value.hidden(c)
    source = x.source
    row = per_channel(c, _along_channels(c, x, other), source.channels, f"{source.name}.scale")
    if isinstance(source, Linear):
        c.note(source.name, f"{row.name} moved to the weights")
    scaled = source.affine(c, PerChannel(row, ops=(*x.ops, op)))
    return replace(x, source=scaled, ops=())
