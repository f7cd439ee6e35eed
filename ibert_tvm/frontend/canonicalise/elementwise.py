"""Rules of sums, products and other elementwise operators on hidden tensors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..report import Folding
from . import functions, views
from .emitter import Emitter
from .images import channel_order
from .inputs import scalar
from .position_tables import add_table
from .rules_rows import applied
from .values import (
    ConstantRow,
    Embedded,
    FromInputs,
    Hidden,
    Linear,
    Mismatch,
    Pointwise,
    Tokens,
    Value,
    Weight,
)


def per_channel(c: Emitter, value: Value, channels: int, name: str) -> Weight:
    """Return `value` as a weight [channels]; a constant of the graph gets the name `name`."""
    if isinstance(value, FromInputs) and value.constant is not None:
        value = Weight(name, np.asarray(value.constant, np.float32))
        c.report.foldings.append(Folding(name, "a constant of the graph became a parameter"))
    if not isinstance(value, Weight):
        raise Mismatch("a weight is needed here")
    array = value.array
    if array.size == 1:
        array = np.broadcast_to(array.reshape(1), (channels,))
    if array.size != channels or (array.ndim > 1 and array.shape[-1] != channels):
        raise Mismatch(
            f"{value.name} of shape {array.shape} is not one number per channel ({channels})"
        )
    return Weight(value.name, array.reshape(channels), layer=value.layer)


def bounded(c: Emitter, value: Value, low: float, high: float, op: str) -> Value:
    """Keep values between bounds: a part of an activation function, or what is applied to one."""
    none = functions.UNBOUNDED
    low, high = max(low, -none), min(high, none)
    if isinstance(value, Pointwise):
        known = functions.name_function(value.samples)
        value = value if known is None or known[0] == "relu" else c.hidden(value)
    if not isinstance(value, (Hidden, Pointwise)):
        raise Mismatch("it is applied to something other than a hidden tensor")
    x = value.lifted()
    least, most = float(x.samples.min()), float(x.samples.max())
    if not (low == -none or least < low) or not (high == none or high < most):
        # Samples on the grid do not show such a bound.
        return c.clip(c.hidden(value), low, high, (*value.ops, op))
    samples = np.clip(x.samples, low, high)
    bounds = [f"{bound:g}" for bound in (low, high) if abs(bound) < none]
    text = f"{op.removeprefix('relax.')}({', '.join([x.text, *bounds])})"
    return replace(x, samples=samples, text=text, parts=(), ops=(*x.ops, op))


def _same_tensor(a: Pointwise, b: Pointwise) -> bool:
    return a.base.source is b.base.source and a.base.view == b.base.view


def limited(c: Emitter, op: str, value: Tokens, other: FromInputs) -> Value | None:
    """Interpret the larger or smaller one of a hidden tensor and a number; None if it is none."""
    number = scalar(other)
    if number is None:
        return None
    bounds = (number, np.inf) if op == "relax.maximum" else (-np.inf, number)
    return bounded(c, value, *bounds, op)


def scaled_rows(c: Emitter, op: str, x: Hidden, other: FromInputs) -> Value | None:
    """Interpret rows of a table times a number, as a table; None for anything else."""
    number = scalar(other)
    scaled = None if number is None else c.scaled_rows(x, number)
    return None if scaled is None else replace(scaled, ops=(*scaled.ops, op))


def with_number(_c: Emitter, op: str, left: Value, right: Value) -> Pointwise | None:
    """Interpret an operator on a hidden tensor and a number; None if it is none."""
    number = next((scalar(item) for item in (left, right) if isinstance(item, FromInputs)), None)
    if number is None:
        return None
    x = next(item for item in (left, right) if isinstance(item, Tokens)).lifted()
    step = -1 if isinstance(left, FromInputs) else 1
    samples, texts = (x.samples, number)[::step], (x.text, f"{number:g}")[::step]
    return applied(op, x, samples, texts, (*x.ops, op))


def added(c: Emitter, op: str, value: Tokens, other: Weight | FromInputs) -> Hidden:
    """Interpret the addition of a table of positions, or of one number per channel."""
    x = c.hidden(value)
    return add_table(c, x, other, op) or _bias(c, x, other, op)


def hidden_pair(c: Emitter, op: str, left: Tokens, right: Tokens) -> Value:
    """Interpret an operator on two hidden tensors, or on two functions of one."""
    a, b = left.lifted(), right.lifted()
    if _same_tensor(a, b):
        result = applied(op, a, (a.samples, b.samples), (a.text, b.text), (*a.ops, *b.ops, op))
        return replace(result, parts=(left, right) if op == "relax.add" else ())
    if op == "relax.multiply":
        return c.multiply(left, right, (op,))
    if op != "relax.add":
        raise Mismatch(
            "two different hidden tensors are combined, and only sums and products have a form"
        )
    for one, other in ((left, right), (right, left)):
        if isinstance(one, Hidden) and isinstance(one.source, ConstantRow):
            target = c.hidden(other)
            shape = views.shape_of(target.view)
            if views.broadcast(one.view, shape, one.missing) != target.view:
                raise Mismatch("a constant row is added in another layout")
            return _bias(c, target, one.source.row, op)
    return c.add(left, right, (op,))


def _bias(c: Emitter, x: Hidden, other: Weight | FromInputs, op: str) -> Hidden:
    """Add one number per channel: a bias, or a constant row of an embedding sum."""
    other = _along_channels(c, x, other)
    source = x.source
    row = per_channel(c, other, source.channels, f"{source.name}.bias")
    if x.factor != 1.0:
        raise Mismatch("a bias is added after a scale")
    if isinstance(source, Linear) and source.bias is not None:
        c.report.foldings.append(Folding(source.name, f"{row.name} added to the bias"))
    elif isinstance(source, Embedded):
        c.report.foldings.append(Folding(source.table.name, f"{row.name} added to every row"))
    new = c.affine(source, row=row, ops=(*x.ops, op))
    return Hidden(new, x.view, missing=x.missing, layer=x.layer)


def _along_channels(c: Emitter, x: Hidden, other: Weight | FromInputs) -> Weight | FromInputs:
    """Return `other` with its channels last, where those of `x` are in other axes."""
    channels = x.source.channels
    last = bool(x.view) and views.merged(x.view[-1]) == views.channel_axis(channels)
    if last or not isinstance(other, Weight):
        c.require_all_channels(x)
        return other
    axes = [all(a.kind == "channel" for a in axis) and bool(axis) for axis in x.view]
    order = channel_order(views.flatten([x.view[i] for i in np.flatnonzero(axes)]), channels)
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


def channel_scale(c: Emitter, op: str, value: Tokens, other: Weight) -> Hidden:
    """Multiply each channel by a number of its own, which a linear layer before it takes over."""
    x = c.hidden(value)
    source = x.source
    row = per_channel(c, _along_channels(c, x, other), source.channels, f"{source.name}.scale")
    if isinstance(source, Linear):
        c.report.foldings.append(Folding(source.name, f"{row.name} moved to the weights"))
    return replace(x, source=c.affine(source, row, ops=(*x.ops, op)), ops=())
