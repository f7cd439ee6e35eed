"""Rules of normalisation, activations, sums and pooling."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from tvm import relax

from ibert_tvm.relay_passes.canonical import build

from ..report import Folding
from . import functions, mixing, views
from .distance_vectors import terms_binary
from .emitter import Emitter, layer_of
from .engine import Rule
from .images import channel_order
from .inputs import scalar
from .operands import optional_axes
from .position_tables import add_table
from .rules_attention import scores_binary
from .rules_mixing import mixed_binary, turns
from .rules_pooling import filled_by_sum, pooled, summed, weighted
from .rules_rows import applied, lift, reduce_rows, row_binary, settled
from .values import (
    ConstantRow,
    Embedded,
    FromInputs,
    Hidden,
    Linear,
    MaskedHidden,
    Mismatch,
    Mixed,
    Pointwise,
    Probabilities,
    RowFunction,
    Scores,
    Value,
    Weight,
)

# -- normalisation and elementwise ----------------------------------------------------------


def _vector(c: Emitter, value: Any, channels: int, name: str) -> Weight:
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


def _constants(
    c: Emitter, call: relax.Call, x: Hidden, given: list[Any], names: tuple[str, ...]
) -> list[Weight]:
    """Constants of a norm of channels; [1, channels of a head] where these are the last axis."""
    axes = optional_axes(call.attrs.axes) or [-1]
    if [axis % len(x.view) for axis in axes] != [len(x.view) - 1]:
        raise Mismatch(f"it normalises over the axes {axes}, not over the last one")
    channels = x.source.channels
    width = views.row_width(x.view, channels)
    places = c.channel_places(x) if width in (0, channels) else None
    weights = [
        _vector(c, value, width or channels, f"{c.emit(x).name}.{name}")
        for name, value in zip(names, given, strict=True)
    ]
    if places is not None:  # pixels of a patch in another order
        weights = [replace(weight, array=weight.array[places]) for weight in weights]
    if 0 < width < channels:
        weights = [replace(weight, array=weight.array.reshape(1, width)) for weight in weights]
    return weights


def _layer_norm(c: Emitter, call: relax.Call, operands: list[Any]) -> Value:
    x = c.hidden(operands[0])
    names = ("layer_norm.weight", "layer_norm.bias")
    gamma, beta = _constants(c, call, x, operands[1:3], names)
    ops = (*x.ops, c.op(call))
    return c.show(c.layer_norm(c.emit(x), gamma, beta, float(call.attrs.epsilon), ops), x)


def _rms_norm(c: Emitter, call: relax.Call, operands: list[Any]) -> Value:
    x = c.hidden(operands[0])
    (gamma,) = _constants(c, call, x, operands[1:2], ("rms_norm.weight",))
    ops = (*x.ops, c.op(call))
    return c.show(c.rms_norm(c.emit(x), gamma, float(call.attrs.epsilon), ops), x)


def _batch_norm(c: Emitter, call: relax.Call, operands: list[Any]) -> list[Any]:
    """Statistics of training by channel: numbers to multiply with, and numbers to add."""
    x, *statistics = operands
    x = c.hidden(x)
    axis = int(call.attrs.axis) % len(x.view)
    channels = x.source.channels
    if views.merged(x.view[axis]) != views.channel_axis(channels):
        raise Mismatch(f"it normalises over axis {axis} of {views.describe(x.view)}")
    if bool(getattr(call.attrs, "training", False)):
        raise Mismatch("it normalises by statistics of the batch; put the model in evaluation mode")
    name = f"{x.source.name}.batch_norm"
    labels = ("weight", "bias", "running_mean", "running_var")
    gamma, beta, mean, variance = (
        _vector(c, item, channels, f"{name}.{label}")
        for item, label in zip(statistics, labels, strict=True)
    )
    epsilon = float(call.attrs.epsilon)
    factors = gamma.array.astype(np.float64) / np.sqrt(variance.array.astype(np.float64) + epsilon)
    row = beta.array - mean.array * factors
    what = Folding(gamma.name, "statistics of training became factors and a row")
    c.report.foldings.append(what)
    new = c.affine(
        c.scaled(x),
        Weight(gamma.name, factors.astype(np.float32)),
        Weight(beta.name, row.astype(np.float32)),
        (*x.ops, c.op(call)),
    )
    return [Hidden(new, x.view, missing=x.missing, layer=layer_of(gamma.name)), mean, variance]


def _unary(c: Emitter, call: relax.Call, operands: list[Any]) -> Value:
    value, op = settled(c, operands[0]), c.op(call)
    if isinstance(value, Scores) and op == "relax.tanh":
        return value.capped(op)
    if isinstance(value, Mixed) and op == "relax.negative":
        return mixing.scaled(value, -1.0, (*value.ops, op))
    if isinstance(value, Mixed):
        value = c.hidden(value)
    if not isinstance(value, (Hidden, Pointwise, RowFunction)):
        raise Mismatch("it is applied to something other than a hidden tensor")
    x = value if isinstance(value, RowFunction) else lift(value)
    return applied(op, x, (x.samples,), (x.text,), (*x.ops, op))


def _clip(c: Emitter, call: relax.Call, operands: list[Any]) -> Value:
    value, op = settled(c, operands[0]), c.op(call)
    low, high = (float(argument.value) for argument in call.args[1:3])
    if not isinstance(value, RowFunction):
        return _bounded(c, value, low, high, op)
    with np.errstate(all="ignore"):
        samples = np.clip(value.samples, low, high)
    text = f"clip({value.text}, {low:g}, {high:g})"
    return replace(value, samples=samples, text=text, parts=(), ops=(*value.ops, op))


def _bounded(c: Emitter, value: Any, low: float, high: float, op: str) -> Value:
    """Keep values between bounds: a part of an activation function, or what is applied to one."""
    none = functions.UNBOUNDED
    low, high = max(low, -none), min(high, none)
    if isinstance(value, Pointwise):
        known = functions.name_function(value.samples)
        value = value if known is None or known[0] == "relu" else c.hidden(value)
    if not isinstance(value, (Hidden, Pointwise)):
        raise Mismatch("it is applied to something other than a hidden tensor")
    x = lift(value)
    least, most = float(x.samples.min()), float(x.samples.max())
    if not (low == -none or least < low) or not (high == none or high < most):
        # Samples on the grid do not show such a bound.
        return c.clip(c.hidden(value), low, high, (*value.ops, op))
    samples = np.clip(x.samples, low, high)
    bounds = [f"{bound:g}" for bound in (low, high) if abs(bound) < none]
    text = f"{op.removeprefix('relax.')}({', '.join([x.text, *bounds])})"
    return replace(x, samples=samples, text=text, parts=(), ops=(*x.ops, op))


def _leaky_relu(c: Emitter, call: relax.Call, operands: list[Any]) -> Value:
    value, op = settled(c, operands[0]), c.op(call)
    if not isinstance(value, (Hidden, Pointwise)):
        raise Mismatch("it is applied to something other than a hidden tensor")
    x, slope = lift(value), float(call.attrs.alpha)
    samples = np.where(x.samples < 0, x.samples * slope, x.samples)
    text = f"leaky_relu({x.text}, {slope:g})"
    return replace(x, samples=samples, text=text, parts=(), ops=(*x.ops, op))


def _same_tensor(a: Pointwise, b: Pointwise) -> bool:
    return a.base.source is b.base.source and a.base.view == b.base.view


def _binary(c: Emitter, call: relax.Call, operands: list[Any]) -> Value:
    op = c.op(call)
    left, right = (_number_of(op, item) for item in operands[:2])
    terms = terms_binary(op, left, right)
    if terms is not None:
        return terms
    for one, other in ((left, right), (right, left)):
        if isinstance(one, Scores) and isinstance(other, (FromInputs, Weight)):
            return scores_binary(c, op, one, other, swapped=one is right)
        if isinstance(one, Probabilities) or (isinstance(one, MaskedHidden) and one.summed):
            return pooled(c, op, left, right)
    left, right = (c.hidden(i) if isinstance(i, MaskedHidden) else i for i in (left, right))
    if op == "relax.multiply":  # what is turned by position is a norm before
        left, right = (
            c.hidden(a) if isinstance(a, RowFunction) and turns(b, a.base.view) else a
            for a, b in ((left, right), (right, left))
        )
    mixed = mixed_binary(op, left, right)
    if mixed is not None:
        return mixed
    left, right = (c.hidden(x) if isinstance(x, Mixed) else x for x in (left, right))
    if any(isinstance(item, RowFunction) for item in (left, right)):
        if not any(isinstance(item, Weight) for item in (left, right)):
            left, right = (_unless_paired(c, a, b) for a, b in ((left, right), (right, left)))
        row = None
        if any(isinstance(item, RowFunction) for item in (left, right)):
            row = row_binary(op, left, right)
        if row is not None:
            return row
        left, right = (
            c.hidden(item) if isinstance(item, RowFunction) else item for item in (left, right)
        )
    hidden = [item for item in (left, right) if isinstance(item, (Hidden, Pointwise))]
    if not hidden:
        raise Mismatch("none of its operands is a hidden tensor")
    if len(hidden) == 2:
        return _hidden_pair(c, op, left, right)
    other = right if hidden[0] is left else left
    number = scalar(other) if isinstance(other, FromInputs) else None
    if number is not None and isinstance(hidden[0], Hidden) and op == "relax.multiply":
        scaled = c.scaled_rows(hidden[0], number)
        if scaled is not None:
            return scaled.after(op)
    if number is not None and op in ("relax.maximum", "relax.minimum"):
        bounds = (number, np.inf) if op == "relax.maximum" else (-np.inf, number)
        return _bounded(c, hidden[0], *bounds, op)
    if number is not None:
        return _with_number(op, lift(hidden[0]), number, first=hidden[0] is left)
    if op == "relax.add" and isinstance(other, (Weight, FromInputs)):
        filled = filled_by_sum(c, hidden[0], other, op) if isinstance(other, FromInputs) else None
        if filled is not None:
            return filled
        x = c.hidden(hidden[0])
        return add_table(c, x, other, op) or _bias(c, x, other, op)
    if op == "relax.multiply" and isinstance(other, Weight):
        return _channel_scale(c, c.hidden(hidden[0]), other, op)
    if op == "relax.multiply" and isinstance(other, FromInputs):
        return weighted(c, hidden[0], other, op)
    raise Mismatch(f"a hidden tensor and {type(other).__name__.lower()} are its operands")


def _number_of(op: str, value: Any) -> Any:
    """Take an array of equal numbers, which some exporters write out, for that number."""
    if op == "relax.add" or not isinstance(value, Weight) or value.layer:
        return value
    array = value.array
    if array.size == 0 or not np.all(array == array.flat[0]):
        return value
    return FromInputs(lambda: [array], tuple(array.shape), array)


def _unless_paired(c: Emitter, item: Any, other: Any) -> Any:
    """Take a complete LayerNorm for a hidden tensor, unless its own operand comes back to it."""
    if not isinstance(item, RowFunction) or _same_rows(item, other):
        return item
    return settled(c, item)


def _same_rows(item: RowFunction, other: Any) -> bool:
    base = other if isinstance(other, Hidden) else getattr(other, "base", None)
    return isinstance(base, Hidden) and base.source is item.base.source


def _with_number(op: str, x: Pointwise, number: float, *, first: bool) -> Pointwise:
    step = 1 if first else -1
    samples, texts = (x.samples, number)[::step], (x.text, f"{number:g}")[::step]
    return applied(op, x, samples, texts, (*x.ops, op))


def _hidden_pair(c: Emitter, op: str, left: Hidden | Pointwise, right: Hidden | Pointwise) -> Value:
    a, b = lift(left), lift(right)
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
    vector = _vector(c, other, source.channels, f"{source.name}.bias")
    if x.factor != 1.0:
        raise Mismatch("a bias is added after a scale")
    if isinstance(source, Linear) and source.bias is not None:
        c.report.foldings.append(Folding(source.name, f"{vector.name} added to the bias"))
    elif isinstance(source, Embedded):
        c.report.foldings.append(Folding(source.table.name, f"{vector.name} added to every row"))
    new = c.affine(source, row=vector, ops=(*x.ops, op))
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


def _channel_scale(c: Emitter, x: Hidden, other: Weight, op: str) -> Hidden:
    """Multiply each channel by a number of its own, which a linear layer before it takes over."""
    source = x.source
    vector = _vector(c, _along_channels(c, x, other), source.channels, f"{source.name}.scale")
    if isinstance(source, Linear):
        c.report.foldings.append(Folding(source.name, f"{vector.name} moved to the weights"))
    return replace(x, source=c.affine(source, vector, ops=(*x.ops, op)), ops=())


# -- pooling --------------------------------------------------------------------------------


def _sum(c: Emitter, call: relax.Call, operands: list[Any]) -> Value:
    value = operands[0]
    axes = optional_axes(call.attrs.axis)
    row = reduce_rows(c, c.op(call), value, axes, keepdims=bool(call.attrs.keepdims))
    if row is not None:
        return row
    if not isinstance(value, MaskedHidden):
        raise Mismatch("a sum is taken of something other than a masked hidden tensor")
    return summed(c, value, axes, c.op(call), keep=bool(call.attrs.keepdims))


def _mean(c: Emitter, call: relax.Call, operands: list[Any]) -> Value:
    over = optional_axes(call.attrs.axis)
    row = reduce_rows(c, c.op(call), operands[0], over, keepdims=bool(call.attrs.keepdims))
    if row is not None:
        return row
    x = c.hidden(operands[0])
    axes = [axis % len(x.view) for axis in optional_axes(call.attrs.axis) or []]
    # Images have no padding, so all their tokens may count.
    if axes == [1] and views.is_tokens(x.view[1]) and c.images:
        c.require_all_channels(x)
        operand = c.emit(x)
        name = c.unique(f"{operand.name}.mean_pool")
        ops = (*x.ops, c.op(call))
        emitted = c.record(build.mean_pool, name, operand.channels, ops, operand.var)
        kept = ((), *x.view[2:]) if bool(call.attrs.keepdims) else x.view[2:]
        return Hidden(emitted, (x.view[0], *kept), layer=x.layer)
    raise Mismatch(
        "a mean over all tokens counts padding too, so the result would change with the length; "
        "use a mean over the tokens that the mask marks"
    )


MATH_RULES: dict[str, Rule] = {
    **dict.fromkeys(functions.UNARY, _unary),
    **dict.fromkeys(functions.BINARY, _binary),
    "relax.clip": _clip,
    "relax.mean": _mean,
    "relax.nn.batch_norm": _batch_norm,
    "relax.nn.layer_norm": _layer_norm,
    "relax.nn.leakyrelu": _leaky_relu,
    "relax.nn.rms_norm": _rms_norm,
    "relax.sum": _sum,
}
"""Rules by operator."""
