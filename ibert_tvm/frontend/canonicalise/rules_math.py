"""Rules of normalisation, activations, sums and pooling."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from tvm import relax

from . import functions, views
from .binary import binary
from .builder import Builder, layer_of
from .dispatch import Rule
from .elementwise import per_channel
from .mismatch import Mismatch
from .operands import optional_axes
from .rules_pooling import MaskedHidden, summed
from .rules_rows import emit_norm, reduce_rows
from .values import Hidden, PerChannel, Several, Value, Weight

# -- normalisation and elementwise ----------------------------------------------------------


def _norm(c: Builder, call: relax.Call, op: str, value: Value, *given: Value) -> Value:
    x = value.hidden(c)
    kind = "layer_norm" if len(given) > 1 else "rms_norm"
    weights = _constants(c, call, x, given, kind)
    epsilon = float(call.attrs.epsilon)
    return x.showing(emit_norm(c, kind, x.emit(c), weights, epsilon, (*x.ops, op)))


def _constants(
    c: Builder, call: relax.Call, x: Hidden, given: tuple[Value, ...], kind: str
) -> list[Weight]:
    """Constants of a norm of channels; [1, channels of a head] where these are the last axis."""
    axes = optional_axes(call.attrs.axes) or [-1]
    if [axis % len(x.view) for axis in axes] != [len(x.view) - 1]:
        raise Mismatch(f"it normalises over the axes {axes}, not over the last one")
    channels = x.source.channels
    width = views.row_width(x.view, channels)
    places = x.channel_places() if width in (0, channels) else None
    weights = [
        per_channel(c, value, width or channels, f"{x.emit(c).name}.{kind}.{name}")
        for name, value in zip(("weight", "bias"), given, strict=False)
    ]
    if places is not None:  # pixels of a patch in another order
        weights = [replace(weight, array=weight.array[places]) for weight in weights]
    if 0 < width < channels:
        weights = [replace(weight, array=weight.array.reshape(1, width)) for weight in weights]
    return weights


def _batch_norm(c: Builder, call: relax.Call, op: str, value: Value, *statistics: Value) -> Value:
    """Statistics of training by channel: numbers to multiply with, and numbers to add."""
    x = value.hidden(c)
    axis = int(call.attrs.axis) % len(x.view)
    channels = x.source.channels
    if views.merged(x.view[axis]) != views.channel_axis(channels):
        raise Mismatch(f"it normalises over axis {axis} of {views.describe(x.view)}")
    if bool(getattr(call.attrs, "training", False)):
        raise Mismatch("it normalises by statistics of the batch; put the model in evaluation mode")
    labels = ("weight", "bias", "running_mean", "running_var")
    gamma, beta, mean, variance = (
        per_channel(c, item, channels, f"{x.source.name}.batch_norm.{label}")
        for item, label in zip(statistics, labels, strict=True)
    )
    epsilon = float(call.attrs.epsilon)
    factors = gamma.array.astype(np.float64) / np.sqrt(variance.array.astype(np.float64) + epsilon)
    row = beta.array - mean.array * factors
    c.note(gamma.name, "statistics of training became factors and a row")
    scale, shift = (
        Weight(old.name, array.astype(np.float32)) for old, array in ((gamma, factors), (beta, row))
    )
    new = x.scaled(c).affine(c, PerChannel(scale, shift, (*x.ops, op)))
    shown = Hidden(new, x.view, missing=x.missing, layer=layer_of(gamma.name))
    return Several((shown, mean, variance))


def _unary(c: Builder, _call: relax.Call, op: str, value: Value) -> Value:
    return value.settled(c).elementwise(c, op)


def _clip(c: Builder, call: relax.Call, op: str, value: Value, *_bounds: Value) -> Value:
    low, high = (float(argument.value) for argument in call.args[1:3])
    return value.settled(c).bounded(c, op, low, high)


def _leaky_relu(c: Builder, call: relax.Call, op: str, value: Value) -> Value:
    x, slope = value.settled(c).lifted(), float(call.attrs.alpha)
    samples = np.where(x.samples < 0, x.samples * slope, x.samples)
    return x.after(op, samples=samples, text=f"leaky_relu({x.text}, {slope:g})", parts=())


# -- pooling --------------------------------------------------------------------------------


def _sum(c: Builder, call: relax.Call, op: str, value: Value) -> Value:
    axes, keep = optional_axes(call.attrs.axis), bool(call.attrs.keepdims)
    row = reduce_rows(c, op, value, axes, keepdims=keep)
    if row is not None:
        return row
    if not isinstance(value, MaskedHidden):
        raise Mismatch("a sum is taken of something other than a masked hidden tensor")
    return summed(c, value, axes, op, keep=keep)


def _mean(c: Builder, call: relax.Call, op: str, value: Value) -> Value:
    over, keep = optional_axes(call.attrs.axis), bool(call.attrs.keepdims)
    row = reduce_rows(c, op, value, over, keepdims=keep)
    if row is not None:
        return row
    x = value.hidden(c)
    axes = [axis % len(x.view) for axis in over or []]
    # Images have no padding, so all their tokens may count.
    if axes == [1] and views.is_tokens(x.view[1]) and c.images:
        x.require_all_channels()
        emitted = x.emit(c).then(c, "mean_pool", (*x.ops, op))
        kept = ((), *x.view[2:]) if keep else x.view[2:]
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
    "relax.nn.layer_norm": _norm,
    "relax.nn.leakyrelu": _leaky_relu,
    "relax.nn.rms_norm": _norm,
    "relax.sum": _sum,
}
"""Rules by operator."""
