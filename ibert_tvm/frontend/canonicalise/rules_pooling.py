"""Rules of poolings: what is made of the tokens of a sequence, and what becomes of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from tvm import relax

from ...common.types import Array, Longs
from . import functions, views
from .builder import Builder
from .dispatch import Rule, by_kind
from .distance_vectors import HeadProducts, picked
from .inputs import Probes, compared_id
from .mismatch import Mismatch
from .operands import integer
from .values import FromInputs, Hidden, LaidOut, Pointwise, Refusal, Several, Tokens, Value
from .views import View

# What a pooling multiplies tokens with, divides them by, and picks them by: decided by values.
#
# All of it is made from the inputs, so it is compared in the probe runs (`inputs`) with what the
# canonical poolings do. Rows without tokens may have any value: the canonical result is 0 there.

# What is added to padding, or put in its place, so that no token is below it.
_LOW = -1e3


def _last(mask: Array) -> Longs:
    """Place of the last token of each row; the last place where there is none."""
    return mask.shape[1] - 1 - np.argmax(mask[:, ::-1] != 0, axis=1)


WEIGHTS: dict[str, Callable[[Array], Array]] = {
    "mask": lambda mask: mask,
    "position": lambda mask: mask * np.arange(1, mask.shape[1] + 1),
    "last": lambda mask: mask * (np.arange(mask.shape[1]) == _last(mask)[:, None]),
}
"""Weights of tokens by what they are called here, from a mask [batch, seq_len] of 0 and 1."""

_DIVISORS: dict[tuple[str, str], Callable[[Array], Array]] = {
    ("mask", "mean_pool"): lambda total: total,
    ("mask", "sqrt_mean_pool"): np.sqrt,
    ("position", "weighted_mean_pool"): lambda total: total,
}
"""Canonical operators by the weights of a sum, and what it is divided by from their total."""


def as_token_weights(value: FromInputs, probes: Probes, shape: tuple[int, ...]) -> tuple[str, str]:
    """Tell what `value` multiplies tokens with when broadcast to [batch, seq_len, *].

    Parameters
    ----------
    value
        A factor of a hidden tensor.
    probes
        The probe runs.
    shape
        Shape of the hidden tensor, batch and sequence first.

    Returns
    -------
    input, weights : str
        The input that marks tokens, and a key of `WEIGHTS`.

    Raises
    ------
    Mismatch
        If it is anything else.
    """
    try:
        arrays = [np.broadcast_to(array, shape) for array in value.samples()]
    except ValueError as error:
        raise Mismatch(f"a factor of shape {value.shape} does not fit {shape}") from error
    for name in probes.names:
        for kind, weights in WEIGHTS.items():
            if all(
                np.array_equal(arrays[i], np.broadcast_to(expected[:, :, None], shape))
                for i in probes.binary(name)
                for expected in [weights(probes.runs[i][name])]
            ):
                return name, kind
    raise Mismatch("the factor is not the padding mask, 1 for tokens and 0 for padding")


def kept_by(condition: FromInputs, *, inverted: bool) -> FromInputs:
    """Return 1 where a condition keeps entries, and 0 elsewhere.

    Parameters
    ----------
    condition
        The condition.
    inverted
        Whether it holds where entries are replaced, not where they are kept.
    """

    def samples() -> list[Array]:
        return [(array == 0) == inverted for array in condition.samples()]

    return replace(condition, samples=samples, constant=None)


def as_filled(value: FromInputs, probes: Probes, shape: tuple[int, ...], *, inverted: bool) -> str:
    """Return the input whose padding a condition marks.

    Parameters
    ----------
    value
        A condition that selects the entries of a hidden tensor.
    probes, shape
        As for `as_token_weights`.
    inverted
        Whether it holds at padding, not at tokens.

    Raises
    ------
    Mismatch
        If it marks anything else.
    """
    name, kind = as_token_weights(kept_by(value, inverted=inverted), probes, shape)
    if kind != "mask":
        raise Mismatch("tokens are selected by something other than the padding mask")
    return name


def as_low_padding(value: FromInputs, probes: Probes, shape: tuple[int, ...]) -> str | None:
    """Return the input at whose padding `value` is very low while it is 0 at tokens; else None."""
    try:
        arrays = [np.broadcast_to(array, shape) for array in value.samples()]
    except ValueError:
        return None
    for name in probes.names:
        padding = {i: probes.runs[i][name][..., None] == 0 for i in probes.binary(name)}
        if all(
            np.all(np.where(where, arrays[i] <= _LOW, arrays[i] == 0))
            for i, where in padding.items()
        ):
            return name
    return None


def as_pooling(value: FromInputs, probes: Probes, name: str, weights: str) -> str:
    """Return the canonical operator that a sum of weighted tokens becomes by a division.

    Parameters
    ----------
    value
        The divisor, [batch, 1 or channels].
    probes
        The probe runs.
    name
        The input that marks tokens.
    weights
        A key of `WEIGHTS`.

    Raises
    ------
    Mismatch
        If it is no known one.
    """
    samples = value.samples()
    for index in probes.binary(name):
        array = samples[index]
        if array.ndim != 2 or array.shape[0] != probes.batch:
            raise Mismatch(f"the divisor has shape {value.shape}, not one number per row")
    for (kind, operator), divisor in _DIVISORS.items():
        if kind == weights and all(
            np.allclose(samples[i][rows], divisor(total[rows, None]), rtol=1e-6)
            and not np.any(samples[i] < 0)
            for i in probes.binary(name)
            for total in [WEIGHTS[kind](probes.runs[i][name]).sum(axis=1)]
            for rows in [total > 0]
        ):
            return operator
    raise Mismatch("the divisor is not the number of tokens in the row")


def as_last_place(value: FromInputs, probes: Probes) -> str:
    """Return the input whose last token `value` is the place of, one number per row.

    Parameters
    ----------
    value
        Indices [batch, ...] that are the same along all other axes.
    probes
        The probe runs.

    Raises
    ------
    Mismatch
        If it is another place for some mask.
    """
    samples = value.samples()
    if samples[0].ndim < 1 or samples[0].shape[0] != probes.batch:
        raise Mismatch("tokens are picked by indices that are not one per row")
    for name in probes.names:
        if all(
            np.array_equal(found, np.broadcast_to(_last(mask)[rows, None], found.shape))
            for i in probes.binary(name)
            for mask in [probes.runs[i][name]]
            for rows in [mask.any(axis=1)]
            for found in [samples[i].reshape(probes.batch, -1)[rows] % probes.seq_len]
        ):
            return name
    raise Mismatch(
        "tokens are picked by an index that is not the place of the last token for every mask, "
        "with padding in front or between too"
    )


UNMASKED = (
    "a maximum over all tokens counts padding too, so the result would change with the "
    "length; put a low number in the place of padding first"
)
_NEGATIVE = "padding is 0 in a maximum, which is above tokens that are negative"


@dataclass(frozen=True, eq=False)
class ToPool(LaidOut):
    """Tokens of which padding is set apart, on the way to a pooling.

    Parameters
    ----------
    base
        The tokens.
    mask
        Name of the input that marks tokens.
    view
        Its layout.
    """

    base: Hidden | Pointwise
    mask: str
    view: View

    def pool(self, c: Builder, kind: str, view: View, ops: Sequence[str]) -> Hidden:
        """Emit a pooling."""
        hidden = self.base.hidden(c)
        hidden.require_all_channels()
        made = hidden.emit(c).then(c, kind, ops, c.input_vars[self.mask])
        return Hidden(made, view, layer=self.layer)

    def largest(self, c: Builder, view: View, ops: Sequence[str]) -> Value:
        """Emit the maximum over the tokens."""
        raise Mismatch(_NEGATIVE)


@dataclass(frozen=True, eq=False)
class WeightedTokens(ToPool):
    """Tokens multiplied by weights, padding by 0.

    Parameters
    ----------
    weights
        A key of `token_weights.WEIGHTS`.
    """

    weights: str = "mask"

    WHAT: ClassVar[str] = "a sum of tokens, or one by weights"


@dataclass(frozen=True, eq=False)
class MaskedHidden(WeightedTokens):
    """They are not summed yet."""

    def hidden(self, c: Builder) -> Hidden:
        if self.weights != "mask":
            return super().hidden(c)
        return replace(c.once(("masked", self.base), lambda: self._masked(c)), view=self.view)

    def _masked(self, c: Builder) -> Hidden:
        """Emit the product of a hidden tensor and the padding mask, in the tensor's layout."""
        base = self.base.hidden(c)
        mask = c.input_vars[self.mask]
        made = base.emit(c).then(c, "mask_tokens", self.ops, mask, suffix="masked")
        return base.showing(made)

    def largest(self, c: Builder, view: View, ops: Sequence[str]) -> Value:
        function = self.base
        if self.weights != "mask" or not isinstance(function, Pointwise):
            raise Mismatch(_NEGATIVE)
        pool = replace(self, base=function.base).pool(c, "max_pool", view, ops)
        return Pointwise(pool, function.samples, function.text, layer=self.layer)


@dataclass(frozen=True, eq=False)
class TokenSum(WeightedTokens):
    """Their sum over the sequence."""


@dataclass(frozen=True, eq=False)
class FilledHidden(ToPool):
    """Tokens with very low numbers at padding."""

    WHAT: ClassVar[str] = "a hidden tensor with low numbers at padding"

    def largest(self, c: Builder, view: View, ops: Sequence[str]) -> Value:
        return self.pool(c, "max_pool", view, ops)


def _is_of_tokens(c: Builder, x: Hidden) -> bool:
    return x.view[:2] == (c.rows, (c.seq_len,)) and x.factor == 1.0


def _token_shape(c: Builder, x: Hidden) -> tuple[int, ...]:
    if not _is_of_tokens(c, x):
        raise Mismatch("a hidden tensor is multiplied by a tensor made from the inputs")
    return views.shape_of(x.view)


def weighted(c: Builder, op: str, value: Tokens, factor: FromInputs) -> Value:
    """Interpret a hidden tensor times a tensor made from the inputs.

    Raises
    ------
    Mismatch
        If that does not multiply tokens by 0 and 1, or by weights that a pooling has.
    """
    # A function that a maximum is taken of is applied afterwards, to one row instead of all tokens.
    base = value if isinstance(value, Pointwise) and _grows_from_zero(value) else value.hidden(c)
    shown = base.base if isinstance(base, Pointwise) else base
    if not _is_of_tokens(c, shown) and factor.fixed() is not None:
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


def filled_by_sum(c: Builder, op: str, value: Tokens, other: FromInputs) -> Value | None:
    """Interpret the addition of very low numbers to padding; None if it is another addition."""
    if other.fixed() is not None:
        return None
    view = value.lifted().view
    if view[:2] != (c.rows, (c.seq_len,)) or len(view) != 3:
        return None
    mask = as_low_padding(other, c.probes, views.shape_of(view))
    return None if mask is None else _filled(c, value, mask, op)


def filled_by_choice(
    c: Builder, condition: FromInputs, value: Value, other: Value, op: str, *, inverted: bool
) -> Value:
    """Interpret a choice between a hidden tensor and a number at padding.

    Raises
    ------
    Mismatch
        If it chooses by something else, or the number is neither 0 nor a low one.
    """
    hidden = value.hidden(c)
    number = other.number()
    if number == 0.0:  # the product with the mask
        try:
            return weighted(c, op, hidden, kept_by(condition, inverted=inverted))
        except Mismatch as error:
            c.chosen_id = compared_id(condition.samples(), c.probes) if inverted else None
            raise Mismatch(
                "tokens become 0 where a condition on the inputs holds that is not padding: what "
                "is computed of a token may not depend on which ids a text has, but by tables"
            ) from error
    if number is None or not number <= _LOW:
        raise Mismatch(f"padding becomes {number}, and only a low number is left out of a maximum")
    mask = as_filled(condition, c.probes, _token_shape(c, hidden), inverted=inverted)
    return _filled(c, hidden, mask, op)


def _filled(c: Builder, value: Value, mask: str, op: str) -> FilledHidden:
    hidden = value.hidden(c)
    _token_shape(c, hidden)
    return FilledHidden(hidden, mask, hidden.view, ops=(*hidden.ops, op), layer=hidden.layer)


def pooled(c: Builder, op: str, total: TokenSum, divisor: FromInputs) -> Hidden:
    """Interpret the division of a sum over tokens by what makes it a mean."""
    kind = as_pooling(divisor, c.probes, total.mask, total.weights)
    return total.pool(c, kind, total.view, (*total.ops, op))


def summed(
    c: Builder, value: MaskedHidden, axes: list[int] | None, op: str, *, keep: bool
) -> Value:
    """Interpret the sum of weighted tokens."""
    if axes is None or [value.view[axis] for axis in axes] != [(c.seq_len,)]:
        raise Mismatch("a hidden tensor is summed over something other than the sequence")
    view = _without(value.view, axes[0], keep=keep)
    ops = (*value.ops, op)
    if value.weights == "last":  # one of the weights is 1
        return value.pool(c, "last_token", view, ops)
    return TokenSum(value.base, value.mask, view, value.weights, ops=ops, layer=value.layer)


def largest(c: Builder, value: ToPool, axes: list[int] | None, op: str, *, keep: bool) -> Value:
    """Interpret the maximum over the tokens of a sequence."""
    if axes is None or [value.view[axis] for axis in axes] != [(c.seq_len,)]:
        raise Mismatch("the maximum is over something other than the sequence")
    return value.largest(c, _without(value.view, axes[0], keep=keep), (*value.ops, op))


def _without(view: View, axis: int, *, keep: bool) -> View:
    axis %= len(view)
    return tuple(() if i == axis else item for i, item in enumerate(view) if i != axis or keep)


def _top(c: Builder, call: relax.Call, op: str, value: ToPool) -> Value:
    """The largest value and its place: torch's maximum over an axis."""
    if integer(call.attrs.k) != 1 or not bool(call.attrs.largest):
        raise Mismatch("only the largest entry of an axis has a form")
    result = largest(c, value, [integer(call.attrs.axis)], op, keep=True)
    if str(call.attrs.ret_type) not in ("both", "values"):
        raise Mismatch("the place of the largest entry has no form")
    place = Refusal(op, "the place of the largest entry has no form", layer=result.layer)
    return Several((result, place)) if str(call.attrs.ret_type) == "both" else result


def _pick(c: Builder, value: Value, places: FromInputs, view: View, op: str) -> Hidden:
    """The token of every row at a place."""
    if isinstance(value, MaskedHidden) and value.weights == "mask":
        value = value.base
    hidden = value.hidden(c)
    _token_shape(c, hidden)
    mask = as_last_place(places, c.probes)
    source = MaskedHidden(hidden, mask, hidden.view, "last", layer=hidden.layer)
    return source.pool(c, "last_token", view, (*hidden.ops, op))


def _picked(
    _c: Builder, call: relax.Call, op: str, products: HeadProducts, places: FromInputs
) -> Value:
    return picked(products, places, integer(call.attrs.axis) % len(products.view), op)


def _gather(c: Builder, call: relax.Call, op: str, value: _Shown, places: FromInputs) -> Value:
    view = value.view
    axis = integer(call.attrs.axis) % len(view)
    channels = views.shape_of(view)[-1]
    if axis != 1 or len(view) != 3 or places.shape != (c.batch.extent, 1, channels):
        raise Mismatch("only one token of every row may be picked")
    return _pick(c, value, places, (view[0], (), view[2]), op)


def _index(c: Builder, _call: relax.Call, op: str, value: _Shown, indices: Several) -> Value:
    view, places = value.view, [x for x in indices.parts if isinstance(x, FromInputs)]
    if len(places) != 2 or len(indices.parts) != 2:
        raise Mismatch(_PICKED_OF)
    every = places[0].fixed()
    in_order = every is not None and np.array_equal(every.reshape(-1), np.arange(c.batch.extent))
    if len(view) != 3 or not in_order or places[1].shape != (c.batch.extent,):
        raise Mismatch("only one token of every row may be picked, the rows in order")
    return _pick(c, value, places[1], (view[0], view[2]), op)


_Shown = Hidden | Pointwise | WeightedTokens
_SHOWN = (Hidden, Pointwise, WeightedTokens)
_PICKED_OF = "entries are picked of something other than a hidden tensor"

POOLING_RULES: dict[str, Rule] = {
    "relax.gather_elements": by_kind(
        ((HeadProducts, FromInputs), _picked), ((_SHOWN, FromInputs), _gather), otherwise=_PICKED_OF
    ),
    "relax.index_tensor": by_kind(((_SHOWN, Several), _index), otherwise=_PICKED_OF),
    "relax.topk": by_kind(
        ((ToPool,), _top),
        ((Tokens,), UNMASKED),
        otherwise="the largest entries of something other than a hidden tensor",
    ),
}
"""Rules by operator."""
