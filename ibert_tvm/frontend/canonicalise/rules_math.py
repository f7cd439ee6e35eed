"""Rules of normalisation, activations, sums and pooling."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from tvm import relax

from ibert_tvm.relay_passes.canonical import build

from ..report import Folding
from . import functions, mixing, views
from .binary import binary
from .elementwise import bounded, per_channel
from .emitter import Emitter, layer_of
from .engine import Rule
from .operands import optional_axes
from .rules_pooling import summed
from .rules_rows import applied, reduce_rows, settled
from .values import (
    Hidden,
    MaskedHidden,
    Mismatch,
    Mixed,
    Pointwise,
    RowFunction,
    Scores,
    Value,
    Weight,
)

# -- normalisation and elementwise ----------------------------------------------------------


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
        per_channel(c, value, width or channels, f"{c.emit(x).name}.{name}")
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
        per_channel(c, item, channels, f"{name}.{label}")
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
    x = value if isinstance(value, RowFunction) else value.lifted()
    return applied(op, x, (x.samples,), (x.text,), (*x.ops, op))


def _clip(c: Emitter, call: relax.Call, operands: list[Any]) -> Value:
    value, op = settled(c, operands[0]), c.op(call)
    low, high = (float(argument.value) for argument in call.args[1:3])
    if not isinstance(value, RowFunction):
        return bounded(c, value, low, high, op)
    with np.errstate(all="ignore"):
        samples = np.clip(value.samples, low, high)
    text = f"clip({value.text}, {low:g}, {high:g})"
    return replace(value, samples=samples, text=text, parts=(), ops=(*value.ops, op))


def _leaky_relu(c: Emitter, call: relax.Call, operands: list[Any]) -> Value:
    value, op = settled(c, operands[0]), c.op(call)
    if not isinstance(value, (Hidden, Pointwise)):
        raise Mismatch("it is applied to something other than a hidden tensor")
    x, slope = value.lifted(), float(call.attrs.alpha)
    samples = np.where(x.samples < 0, x.samples * slope, x.samples)
    text = f"leaky_relu({x.text}, {slope:g})"
    return replace(x, samples=samples, text=text, parts=(), ops=(*x.ops, op))


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
    **dict.fromkeys(functions.BINARY, binary),
    "relax.clip": _clip,
    "relax.mean": _mean,
    "relax.nn.batch_norm": _batch_norm,
    "relax.nn.layer_norm": _layer_norm,
    "relax.nn.leakyrelu": _leaky_relu,
    "relax.nn.rms_norm": _rms_norm,
    "relax.sum": _sum,
}
"""Rules by operator."""
