"""Rules of poolings: what is made of the tokens of a sequence, and what becomes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from tvm import relax

from ibert_tvm.relay_passes.canonical import build

from . import functions, views
from .distance_vectors import picked
from .emitter import Emitter
from .engine import Rule
from .inputs import compared_id, constant_array, scalar
from .operands import integer, optional_axes
from .token_weights import (
    as_filled,
    as_last_place,
    as_low_padding,
    as_pooling,
    as_token_weights,
    is_low,
    kept_by,
)
from .values import (
    FilledHidden,
    FromInputs,
    HeadProducts,
    Hidden,
    MaskedHidden,
    Mismatch,
    Pointwise,
    Refusal,
    Tokens,
    TokenSum,
    Value,
    WeightedTokens,
)
from .views import View


def _is_of_tokens(c: Emitter, x: Hidden) -> bool:
    return x.view[:2] == (c.rows, (c.seq_len,)) and x.factor == 1.0


def _token_shape(c: Emitter, x: Hidden) -> tuple[int, ...]:
    if not _is_of_tokens(c, x):
        raise Mismatch("a hidden tensor is multiplied by a tensor made from the inputs")
    return views.shape_of(x.view)


def weighted(c: Emitter, op: str, value: Tokens, factor: FromInputs) -> Value:
    """Interpret a hidden tensor times a tensor made from the inputs.

    Raises
    ------
    Mismatch
        If that does not multiply tokens by 0 and 1, or by weights that a pooling has.
    """
    # A function that a maximum is taken of is applied afterwards, to one row instead of all tokens.
    base = value if isinstance(value, Pointwise) and _grows_from_zero(value) else c.hidden(value)
    shown = base.base if isinstance(base, Pointwise) else base
    if not _is_of_tokens(c, shown) and constant_array(factor) is not None:
        raise Mismatch(
            "a hidden tensor is multiplied by numbers that differ between positions, and not by "
            "those of each channel of a head: positions may only be added to embeddings, or turn "
            "queries and keys"
        )
    mask, weights = as_token_weights(factor, c.probes, _token_shape(c, shown))
    return MaskedHidden(base, mask, shown.view, weights, ops=(*base.ops, op), layer=base.layer)


def _grows_from_zero(value: Pointwise) -> bool:
    """Whether a function is never negative, never falls, and is 0 at 0, as padding is then."""
    samples = value.samples
    return bool(
        functions.slope(samples) is None
        and np.all(np.isfinite(samples))
        and np.all(samples >= 0)
        and np.all(np.diff(samples) >= 0)
        and samples[len(samples) // 2] == 0
    )


def filled_by_sum(c: Emitter, op: str, value: Tokens, other: FromInputs) -> Value | None:
    """Interpret the addition of very low numbers to padding; None if it is another addition."""
    if constant_array(other) is not None:
        return None
    view = value.lifted().view
    if view[:2] != (c.rows, (c.seq_len,)) or len(view) != 3:
        return None
    mask = as_low_padding(other, c.probes, views.shape_of(view))
    return None if mask is None else _filled(c, value, mask, op)


def filled_by_choice(
    c: Emitter, condition: FromInputs, value: Any, other: FromInputs, op: str, *, inverted: bool
) -> Value:
    """Interpret a choice between a hidden tensor and a number at padding.

    Raises
    ------
    Mismatch
        If it chooses by something else, or the number is neither 0 nor a low one.
    """
    hidden = c.hidden(value)
    number = scalar(other)
    if number == 0.0:  # the product with the mask
        try:
            return weighted(c, op, hidden, kept_by(condition, inverted=inverted))
        except Mismatch as error:
            c.chosen_id = compared_id(condition, c.probes) if inverted else None
            raise Mismatch(
                "tokens become 0 where a condition on the inputs holds that is not padding: what "
                "is computed of a token may not depend on which ids a text has, but by tables"
            ) from error
    if not is_low(number):
        raise Mismatch(f"padding becomes {number}, and only a low number is left out of a maximum")
    mask = as_filled(condition, c.probes, _token_shape(c, hidden), inverted=inverted)
    return _filled(c, hidden, mask, op)


def _filled(c: Emitter, value: Any, mask: str, op: str) -> FilledHidden:
    hidden = c.hidden(value)
    _token_shape(c, hidden)
    return FilledHidden(hidden, mask, hidden.view, ops=(*hidden.ops, op), layer=hidden.layer)


def pooled(c: Emitter, op: str, total: TokenSum, divisor: FromInputs) -> Hidden:
    """Interpret the division of a sum over tokens by what makes it a mean."""
    kind = as_pooling(divisor, c.probes, total.mask, total.weights)
    return _emit(c, kind, total, total.view, (*total.ops, op))


def summed(
    c: Emitter, value: MaskedHidden, axes: list[int] | None, op: str, *, keep: bool
) -> Value:
    """Interpret the sum of weighted tokens."""
    if axes is None or [value.view[axis] for axis in axes] != [(c.seq_len,)]:
        raise Mismatch("a hidden tensor is summed over something other than the sequence")
    view = _without(value.view, axes[0], keep=keep)
    ops = (*value.ops, op)
    if value.weights == "last":  # one of the weights is 1
        return _emit(c, "last_token", value, view, ops)
    return TokenSum(value.base, value.mask, view, value.weights, ops=ops, layer=value.layer)


def largest(c: Emitter, value: Any, axes: list[int] | None, op: str, *, keep: bool) -> Value:
    """Interpret the maximum over the tokens of a sequence."""
    if isinstance(value, Hidden | Pointwise):
        raise Mismatch(
            "a maximum over all tokens counts padding too, so the result would change with the "
            "length; put a low number in the place of padding first"
        )
    if axes is None or [value.view[axis] for axis in axes] != [(c.seq_len,)]:
        raise Mismatch("the maximum is over something other than the sequence")
    ops = (*value.ops, op)
    view = _without(value.view, axes[0], keep=keep)
    if isinstance(value, FilledHidden):
        return _emit(c, "max_pool", value, view, ops)
    function = value.base
    summed_up = isinstance(value, TokenSum)
    if summed_up or value.weights != "mask" or not isinstance(function, Pointwise):
        raise Mismatch("padding is 0 in a maximum, which is above tokens that are negative")
    pool = _emit(c, "max_pool", replace(value, base=function.base), view, ops)
    return Pointwise(pool, function.samples, function.text, layer=value.layer)


def _without(view: View, axis: int, *, keep: bool) -> View:
    axis %= len(view)
    return tuple(() if i == axis else item for i, item in enumerate(view) if i != axis or keep)


def _emit(
    c: Emitter, kind: str, value: WeightedTokens | FilledHidden, view: View, ops: Sequence[str]
) -> Hidden:
    hidden = c.hidden(value.base)
    c.require_all_channels(hidden)
    x = c.emit(hidden)
    name = c.unique(f"{x.name}.{kind}")
    operands = (x.var, c.input_vars[value.mask])
    emitted = c.record(getattr(build, kind), name, x.channels, ops, *operands)
    return Hidden(emitted, view, layer=value.layer)


def _top(c: Emitter, call: relax.Call, operands: list[Any]) -> Any:
    """The largest value and its place: torch's maximum over an axis."""
    value, op = operands[0], c.op(call)
    if not isinstance(value, Hidden | Pointwise | WeightedTokens | FilledHidden):
        raise Mismatch("the largest entries of something other than a hidden tensor")
    if integer(call.attrs.k) != 1 or not bool(call.attrs.largest):
        raise Mismatch("only the largest entry of an axis has a form")
    result = largest(c, value, [integer(call.attrs.axis)], op, keep=True)
    both = str(call.attrs.ret_type) == "both"
    if str(call.attrs.ret_type) not in ("both", "values"):
        raise Mismatch("the place of the largest entry has no form")
    place = Refusal(op, "the place of the largest entry has no form", layer=result.layer)
    return [result, place] if both else result


def _pick(c: Emitter, value: Any, places: FromInputs, view: View, op: str) -> Hidden:
    """The token of every row at a place."""
    if isinstance(value, MaskedHidden) and value.weights == "mask":
        value = value.base
    hidden = c.hidden(value)
    _token_shape(c, hidden)
    mask = as_last_place(places, c.probes)
    source = MaskedHidden(hidden, mask, hidden.view, "last", layer=hidden.layer)
    return _emit(c, "last_token", source, view, (*hidden.ops, op))


def _gather(c: Emitter, call: relax.Call, operands: list[Any]) -> Value:
    value, places = operands
    if isinstance(value, HeadProducts) and isinstance(places, FromInputs):
        return picked(value, places, integer(call.attrs.axis) % len(value.view), c.op(call))
    shown = isinstance(value, Hidden | Pointwise | WeightedTokens)
    if not shown or not isinstance(places, FromInputs):
        raise Mismatch("entries are picked of something other than a hidden tensor")
    view = value.view
    axis = integer(call.attrs.axis) % len(view)
    channels = views.shape_of(view)[-1]
    if axis != 1 or len(view) != 3 or places.shape != (c.batch.extent, 1, channels):
        raise Mismatch("only one token of every row may be picked")
    return _pick(c, value, places, (view[0], (), view[2]), c.op(call))


def _index(c: Emitter, call: relax.Call, operands: list[Any]) -> Value:
    value, indices = operands
    shown = isinstance(value, Hidden | Pointwise | WeightedTokens)
    if not shown or len(indices) != 2 or not all(isinstance(i, FromInputs) for i in indices):
        raise Mismatch("entries are picked of something other than a hidden tensor")
    view = value.view
    rows, places = indices
    every = constant_array(rows)
    in_order = every is not None and np.array_equal(every.reshape(-1), np.arange(c.batch.extent))
    if len(view) != 3 or not in_order or places.shape != (c.batch.extent,):
        raise Mismatch("only one token of every row may be picked, the rows in order")
    return _pick(c, value, places, (view[0], view[2]), c.op(call))


def max_axes(call: relax.Call) -> tuple[list[int] | None, bool]:
    """Axes of a maximum, and whether they stay."""
    return optional_axes(call.attrs.axis), bool(call.attrs.keepdims)


POOLING_RULES: dict[str, Rule] = {
    "relax.gather_elements": _gather,
    "relax.index_tensor": _index,
    "relax.topk": _top,
}
"""Rules by operator."""
