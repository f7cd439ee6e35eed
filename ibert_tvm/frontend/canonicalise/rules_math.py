"""Rules of normalisation, activations, sums and pooling."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from tvm import relax

from . import distance_vectors as distances
from . import elementwise, functions, mixing, rules_attention, rules_pooling, rules_rows, views
from .builder import Builder, layer_of
from .dispatch import Apply, Rule
from .distance_vectors import PairTerms
from .elementwise import per_channel
from .functions import BINARY
from .mismatch import Mismatch
from .mixing import Mixed
from .operands import optional_axes
from .rules_pooling import MaskedHidden, TokenSum, summed
from .rules_rows import RowFunction, emit_norm, reduce_rows
from .scores import Probabilities, Scores
from .values import (
    FromInputs,
    Given,
    Hidden,
    PerChannel,
    Pointwise,
    Scalable,
    Several,
    Tokens,
    Value,
    Weight,
)

# Operators of two operands: a table of rules by what both operands are.

_Left = TypeVar("_Left", bound=Value)
_Right = TypeVar("_Right", bound=Value)

_ADD, _SUBTRACT = "relax.add", "relax.subtract"
_MULTIPLY, _DIVIDE = "relax.multiply", "relax.divide"
_BOUNDS = ("relax.maximum", "relax.minimum")


@dataclass(frozen=True)
class BinaryRule:
    """What an operator makes of two interpretations.

    Parameters
    ----------
    left, right
        Classes of the operands.
    apply : callable
        ``apply(emitter, op, left, right)`` returns a value, None where it does not apply and later
        rules decide, or raises Mismatch: a rejection with its reason.
    ops
        Operators that it is for.
    commutes
        Whether operands of the opposite order are exchanged for it.
    """

    left: type[Value]
    right: type[Value]
    apply: Apply
    ops: tuple[str, ...]
    commutes: bool

    def fits(self, left: type[Value], right: type[Value]) -> bool:
        """Tell whether it is for operands of these classes, in this order."""
        return issubclass(left, self.left) and issubclass(right, self.right)


def _rule(
    left: type[_Left],
    right: type[_Right],
    apply: Callable[[Builder, str, _Left, _Right], Value | None],
    *ops: str,
    commutes: bool = False,
) -> BinaryRule:
    """A rule whose function takes operands of these classes; for all operators if none is named."""
    return BinaryRule(left, right, apply, ops or tuple(BINARY), commutes)


def _rejected(reason: str) -> Callable[[Builder, str, Value, Value], None]:
    def reject(_c: Builder, _op: str, _left: Value, _right: Value) -> None:
        raise Mismatch(reason)

    return reject


def _norm_turned(c: Builder, op: str, left: Value, right: Value) -> Value | None:
    """What is turned by position is a norm before: take it for its result."""
    settled = [
        a.hidden(c) if isinstance(a, RowFunction) and mixing.turns(b, a.base.view) else a
        for a, b in ((left, right), (right, left))
    ]
    return None if settled == [left, right] else interpret(c, op, *settled)


def _times(_c: Builder, op: str, value: Scalable, other: FromInputs) -> Value | None:
    """A value times a number; None if it is none."""
    number = other.number()
    return None if number is None else value.times(number, op)


def _over(_c: Builder, op: str, value: Scalable, other: FromInputs) -> Value | None:
    """A value divided by a number; None if it is none, or 0."""
    number = other.number()
    return value.over(number, op) if number else None


_RULES = (
    # What is multiplied by numbers before it is known what it is.
    _rule(Scalable, FromInputs, _times, _MULTIPLY, commutes=True),
    _rule(Scalable, FromInputs, _over, _DIVIDE),
    # Terms of scores by distance.
    _rule(Scores, PairTerms, distances.scores_plus_terms, _ADD, commutes=True),
    _rule(PairTerms, PairTerms, distances.joined_terms, _ADD),
    _rule(PairTerms, FromInputs, distances.terms_plus, _ADD, commutes=True),
    _rule(
        PairTerms,
        Value,
        _rejected("products with vectors for distances are only scaled and added to scores"),
        commutes=True,
    ),
    # Scores, and what becomes of probabilities and sums of tokens.
    _rule(Scores, Given, rules_attention.scores_plus, _ADD, commutes=True),
    _rule(Scores, Given, rules_attention.scores_minus, _SUBTRACT),
    _rule(
        Scores,
        Given,
        _rejected("attention scores are only scaled by a number, masked, and normalised"),
        commutes=True,
    ),
    _rule(TokenSum, FromInputs, rules_pooling.pooled, _DIVIDE),
    _rule(
        TokenSum,
        Value,
        _rejected("a sum over tokens is divided by something other than their number"),
        _DIVIDE,
    ),
    *(
        _rule(
            kind,
            Value,
            _rejected("attention probabilities or masked tensors are changed before their use"),
            commutes=True,
        )
        for kind in (Probabilities, TokenSum)
    ),
    # Channels of heads that are mixed by position.
    _rule(RowFunction, Value, _norm_turned, _MULTIPLY),
    _rule(Value, RowFunction, _norm_turned, _MULTIPLY),
    _rule(Mixed, Mixed, mixing.mixed_sum, _ADD, _SUBTRACT),
    _rule(Mixed, Value, mixing.turned_by, _MULTIPLY, commutes=True),
    _rule(Hidden, Value, mixing.turned_by, _MULTIPLY, commutes=True),
    _rule(Pointwise, Value, mixing.turned_by, _MULTIPLY, commutes=True),
    # Functions of the channels of a token.
    *(_rule(RowFunction, kind, rules_rows.rows_pair) for kind in (RowFunction, Tokens, Given)),
    *(_rule(kind, RowFunction, rules_rows.rows_pair) for kind in (Tokens, Given)),
    # Hidden tensors.
    _rule(Tokens, Tokens, elementwise.hidden_pair),
    _rule(Hidden, FromInputs, elementwise.scaled_rows, _MULTIPLY, commutes=True),
    _rule(Tokens, FromInputs, elementwise.limited, *_BOUNDS, commutes=True),
    _rule(Tokens, FromInputs, elementwise.with_number),
    _rule(FromInputs, Tokens, elementwise.with_number),
    _rule(Tokens, FromInputs, rules_pooling.filled_by_sum, _ADD, commutes=True),
    _rule(Tokens, Given, elementwise.added, _ADD, commutes=True),
    _rule(Tokens, Weight, elementwise.channel_scale, _MULTIPLY, commutes=True),
    _rule(Tokens, FromInputs, rules_pooling.weighted, _MULTIPLY, commutes=True),
)
"""For one pair of classes the first rule that applies decides."""

_UNSETTLED = (MaskedHidden, Mixed, RowFunction)
"""Taken for the hidden tensors that they are, one after the other, where no rule applies."""


def _matching(op: str, left: type[Value], right: type[Value]) -> Iterator[tuple[BinaryRule, int]]:
    """The rules for two classes, and the step through the operands that puts them in order."""
    for rule in _RULES:
        if op in rule.ops and rule.fits(left, right):
            yield rule, 1
        if op in rule.ops and rule.commutes and rule.fits(right, left):
            yield rule, -1


def interpret(c: Builder, op: str, left: Value, right: Value) -> Value:
    """Return what an elementwise operator makes of two operands.

    Raises
    ------
    Mismatch
        If no rule is for them, or one rejects them.
    """
    for rule, step in _matching(op, type(left), type(right)):
        made = rule.apply(c, op, *(left, right)[::step])
        if made is not None:
            return made
    for kind in _UNSETTLED:
        if isinstance(left, kind) or isinstance(right, kind):
            settled = (x.hidden(c) if isinstance(x, kind) else x for x in (left, right))
            return interpret(c, op, *settled)
    other = next((x for x in (left, right) if not isinstance(x, Tokens)), None)
    if other is None or not any(isinstance(x, Tokens) for x in (left, right)):
        raise Mismatch("none of its operands is a hidden tensor")
    raise Mismatch(f"a hidden tensor and {type(other).__name__.lower()} are its operands")


def binary(c: Builder, _call: relax.Call, op: str, left: Value, right: Value) -> Value:
    """Interpret an elementwise operator of two operands."""
    return interpret(c, op, _number_of(op, left), _number_of(op, right))


def _number_of(op: str, value: Value) -> Value:
    """Take an array of equal numbers, which some exporters write out, for that number."""
    if op == "relax.add" or not isinstance(value, Weight) or value.layer:
        return value
    array = value.array
    if array.size == 0 or not np.all(array == array.flat[0]):
        return value
    return FromInputs.of(array)


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
