"""Rules of operators that move, pick or look up data without computing."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from tvm import relax

from ..report import Folding
from . import mixing, views
from .emitter import Emitter, layer_of
from .engine import Rule
from .inputs import TOKEN_IDS, Ids, as_ids, constant_array
from .operands import integer, integers, optional_axes, split_bounds, static_shape
from .rules_tokens import token_run
from .slices import head_part, slice_channels
from .values import (
    Computed,
    ConstantRow,
    Embedded,
    FilledHidden,
    FromInputs,
    HeadProducts,
    Hidden,
    KeptTest,
    Linear,
    Mismatch,
    Mixed,
    PairTerms,
    Pixels,
    Pointwise,
    Probabilities,
    QueryScores,
    RowFunction,
    Scores,
    Weight,
    WeightedTokens,
)
from .views import Atom, Axis, View

_LAID_OUT = (
    FilledHidden,
    HeadProducts,
    WeightedTokens,
    Pixels,
    Probabilities,
    QueryScores,
    Scores,
)


def _move(c: Emitter, value: Any, op: str, change: Callable[[View, Axis], View]) -> Any:
    """Apply `change(view, missing)` to the layout of `value`."""
    if isinstance(value, Pointwise) and value.parts:
        # Its terms have the layout before the movement, so a sum is decided now; what is no sum
        # of known functions may still become one by the operators that follow.
        try:
            value = c.hidden(value)
        except Mismatch:
            value = replace(value, parts=())
    if isinstance(value, Mixed):
        mixed = mixing.moved(value, change(value.view, value.base.missing), op)
        if mixed is not None:
            return mixed
    if isinstance(value, RowFunction | Mixed):
        value = c.hidden(value)
    if isinstance(value, Pointwise):
        base = _hidden(value.base, change, op)
        return replace(value, base=base, ops=(*value.ops, op))
    if isinstance(value, Hidden):
        return replace(_hidden(value, change, op), ops=(*value.ops, op))
    if isinstance(value, PairTerms):
        terms = (replace(term, view=change(term.view, ())) for term in value.terms)
        view = change(value.view, ())
        return replace(value, terms=tuple(terms), view=view, ops=(*value.ops, op))
    if isinstance(value, _LAID_OUT):
        return replace(value, view=change(value.view, ()), ops=(*value.ops, op))
    raise Mismatch("only hidden tensors and attention scores are followed through it")


def _hidden(value: Hidden, change: Callable[[View, Axis], View], op: str) -> Hidden:
    """Apply `change` to the layout of a hidden tensor, and of it as a part of a head."""
    view = change(value.view, value.missing)
    held = set(views.flatten(view))
    missing = tuple(atom for atom in value.missing if atom not in held)
    part = value.part
    if part is not None:
        part = mixing.moved(part, change(part.view, value.missing), op)
    return replace(value, view=view, missing=missing, part=part, rows=None)


def _movement(changed: Callable[[relax.Call, View, Axis], View]) -> Rule:
    """Return the rule of an operator that moves data; the last argument is what may be repeated."""

    def rule(c: Emitter, call: relax.Call, operands: list[Any]) -> Any:
        change = partial(changed, call)
        return _move(c, operands[0], c.op(call), change)

    return rule


_reshape = _movement(lambda call, view, _m: views.reshape(view, static_shape(call)))
_permute = _movement(lambda call, view, _m: views.permute(view, optional_axes(call.attrs.axes)))
_squeeze = _movement(lambda call, view, _m: views.squeeze(view, optional_axes(call.attrs.axis)))


def _broadcast(c: Emitter, call: relax.Call, operands: list[Any]) -> Any:
    value, op = operands[0], c.op(call)
    if isinstance(value, RowFunction) and value.reduced and not value.dropped:
        # A statistic of each row, repeated for the channels that it is combined with.
        if static_shape(call) != views.shape_of(value.base.view):
            raise Mismatch("a statistic of each token is repeated to another shape")
        return value.after(op)
    return _move(c, value, op, lambda view, m: views.broadcast(view, static_shape(call), m))


def _expand_dims(c: Emitter, call: relax.Call, operands: list[Any]) -> Any:
    axes = integers(call.attrs.axis)
    value = operands[0]
    if isinstance(value, RowFunction) and value.dropped:  # the channels of a mean come back
        if axes not in ([-1], [len(value.base.view) - 1]):
            raise Mismatch("a statistic of each token gets an axis that is not that of channels")
        return replace(value, dropped=False, ops=(*value.ops, c.op(call)))
    return _move(c, value, c.op(call), lambda view, _m: views.expand_dims(view, axes))


def _same(c: Emitter, call: relax.Call, operands: list[Any]) -> Any:
    """Operators that change nothing here: dropout at inference, casts to the same type."""
    value = operands[0]
    if call.op.name == "relax.nn.dropout":
        return [value, value]
    if isinstance(value, KeptTest):
        return value.after(c.op(call))
    if str(call.attrs.dtype) != "float32":
        raise Mismatch(f"a hidden tensor is cast to {call.attrs.dtype}; everything is float32 here")
    return value.after(c.op(call))


def _ids_view(ids: Ids, shape: tuple[int, ...], c: Emitter) -> tuple[View, Axis]:
    """Layout of a tensor of indices, and the atoms that it does not have."""
    atoms: Axis = (*c.rows, c.seq_len) if ids.has_batch else (c.seq_len,)
    missing: Axis = () if ids.has_batch else c.rows
    flat: View = (atoms,)
    return views.reshape(flat, shape), missing


def _look_up(c: Emitter, call: relax.Call, table: Weight, ids: FromInputs) -> Any:
    op = c.op(call)
    axis = optional_axes(call.attrs.axis)
    fixed = constant_array(ids)
    if fixed is not None and fixed.ndim == 0:
        row = np.take(table.array, int(fixed), axis=None if axis is None else axis[0])
        return Weight(table.name, row, layer=table.layer)
    pairs = fixed is not None and fixed.size == c.seq_len.extent**2
    if fixed is not None and (c.images or pairs) and axis in ([0], None):
        # Images have one length, so rows at constant places are a table of that length. Rows for
        # pairs of tokens are a bias of scores, or nothing that is known.
        rows = np.take(table.array, fixed.astype(np.int64), axis=0)
        return Weight(table.name, rows, layer=table.layer)
    if axis not in ([0], None) or table.array.ndim != 2:
        raise Mismatch(
            f"only rows of a matrix are looked up, not axis {axis} of {table.array.ndim} dimensions"
        )
    meaning = as_ids(ids, c.probes)
    name = layer_of(table.name)
    channels = table.array.shape[1]
    source: Computed
    if meaning.kind == "constant":
        if not 0 <= meaning.value < table.array.shape[0]:
            raise Mismatch(f"row {meaning.value} is outside of {table.array.shape[0]} rows")
        c.report.foldings.append(
            Folding(table.name, f"row {meaning.value} is used for every token: a constant")
        )
        row = Weight(f"{table.name}[{meaning.value}]", table.array[meaning.value])
        source = ConstantRow(name, channels, (op,), row)
    else:
        variable = (
            c.input_vars[meaning.input]
            if meaning.kind == "input"
            else c.positions(meaning, f"{name}.position_ids")
        )
        if meaning.input == TOKEN_IDS and meaning.kind == "input":
            table = _without_absent(c, table)
        source = Embedded(name, channels, (op,), table, variable)
    view, missing = _ids_view(meaning, ids.shape, c)
    looked = None
    if fixed is not None and meaning.kind == "absolute":
        looked = Weight(table.name, np.take(table.array, fixed, axis=0), layer=name)
        c.note_positions(table.array.shape[0] - meaning.value)
    view = (*view, views.channel_axis(channels))
    return Hidden(source, view, missing=missing, rows=looked, layer=name)


def _without_absent(c: Emitter, table: Weight) -> Weight:
    """Cut the row of the id that no text has off a table of words."""
    rows = table.array.shape[0]
    if c.absent_id is None:
        return table
    if c.absent_id != rows - 1:
        raise Mismatch(
            f"tokens become 0 where their id is {c.absent_id}: only the last id of a vocabulary, "
            f"here {rows - 1}, can be left out of it, so that no text has it"
        )
    c.report.foldings.append(Folding(table.name, f"row {c.absent_id}, the last, is left out"))
    return Weight(table.name, table.array[:-1], layer=table.layer)


def _select(c: Emitter, value: Any, axis: int, index: int, op: str) -> Hidden:
    """Token `index` of a hidden tensor; the axis stays with extent 1."""
    hidden = c.hidden(value)
    if hidden.view[axis] == () and index in (0, -1):
        return hidden
    if not views.is_tokens(hidden.view[axis]):
        raise Mismatch(
            f"one index is taken of an axis of {views.describe(hidden.view)} that is "
            "not the sequence"
        )
    tokens = views.merged(hidden.view[axis])[0]
    if tokens.kind == "patch":
        index %= tokens.extent
    if index < 0:
        raise Mismatch(
            "a token is taken from the end of the sequence, which moves with the padding"
        )
    source = token_run(hidden, tokens.extent, index, index + 1, op)
    view = tuple(() if i == axis else item for i, item in enumerate(hidden.view))
    return Hidden(source, view, missing=hidden.missing, layer=hidden.layer)


def _take(c: Emitter, call: relax.Call, operands: list[Any]) -> Any:
    value, index = operands[0], operands[1]
    op = c.op(call)
    if isinstance(value, Weight) and isinstance(index, FromInputs):
        return _look_up(c, call, value, index)
    fixed = constant_array(index) if isinstance(index, FromInputs) else None
    if fixed is None or fixed.size != 1:
        raise Mismatch("only one constant index may be taken of a hidden tensor")
    axes = optional_axes(call.attrs.axis)
    rank = len(static_shape(call.args[0]))
    axis = (axes or [0])[0] % rank
    place = int(fixed.reshape(-1)[0])
    hidden = c.hidden(value)
    if [atom.kind for atom in hidden.view[axis]] == ["channel"]:
        place += views.shape_of(hidden.view)[axis] if place < 0 else 0
        selected = slice_channels(hidden, axis, place, place + 1, op)
    else:
        selected = _select(c, hidden, axis, place, op)
    if fixed.ndim == 0:
        return replace(selected, view=views.squeeze(selected.view, [axis]))
    return selected


def _slice_tokens(hidden: Hidden, axis: int, first: int, last: int, op: str) -> Hidden:
    """Tokens `first` to `last`: of a sequence of any length they are no sequence again."""
    tokens = views.merged(hidden.view[axis])[0]
    source = token_run(hidden, tokens.extent, first, last, op)
    kind = "patch" if tokens.kind == "patch" else "run"
    run = Atom(kind, last - first)
    view = tuple((run,) if i == axis else item for i, item in enumerate(hidden.view))
    return Hidden(source, view, missing=hidden.missing, layer=hidden.layer)


def _cut(
    c: Emitter, value: Any, axis: int, first: int, last: int, op: str, step: int = 1
) -> Hidden | Mixed:
    tensor = value if isinstance(value, Mixed) else c.hidden(value)
    extent = views.shape_of(tensor.view)[axis]
    first, last = (min(max(i + extent if i < 0 else i, 0), extent) for i in (first, last))
    lanes = tensor if isinstance(tensor, Mixed) else None
    if step != 1 and isinstance(tensor, Hidden):
        lanes = head_part(tensor, axis, slice(None), op)
    if lanes is not None and [a.kind for a in views.merged(lanes.view[axis])] == ["lane"]:
        return mixing.chosen(lanes, axis, slice(first, last, step), op)
    if step != 1:
        raise Mismatch(f"a hidden tensor is sliced with the step {step}")
    hidden = c.hidden(value)
    if (first, last) == (0, extent):
        return hidden
    if views.is_tokens(hidden.view[axis]) and last == first + 1:
        if last == extent and hidden.view[axis] == (c.seq_len,):
            raise Mismatch("the last token is taken, which moves with the padding")
        return _select(c, hidden, axis, first, op)
    if views.is_tokens(hidden.view[axis]):
        return _slice_tokens(hidden, axis, first, last, op)
    if not isinstance(hidden.source, Linear):  # a norm of heads: nothing but a rotation reads parts
        lanes = head_part(hidden, axis, slice(first, last), op)
        if lanes is not None:
            return lanes
    return slice_channels(hidden, axis, first, last, op)


def _strided_slice(c: Emitter, call: relax.Call, operands: list[Any]) -> Any:
    axes, begin, end = (integers(argument) for argument in call.args[1:4])
    strides = integers(call.args[4]) if len(call.args) > 4 else [1] * len(axes)
    rank = len(static_shape(call.args[0]))
    value = operands[0]
    for axis, first, last, step in zip(axes, begin, end, strides, strict=True):
        value = _cut(c, value, axis % rank, first, last, c.op(call), step)
    return value


def _split(c: Emitter, call: relax.Call, operands: list[Any]) -> Any:
    shape = static_shape(call.args[0])
    axis = integer(call.attrs.axis) % len(shape)
    bounds = split_bounds(call, shape)
    return [
        _cut(c, operands[0], axis, first, last, c.op(call))
        for first, last in itertools.pairwise(bounds)
    ]


LAYOUT_RULES: dict[str, Rule] = {
    "relax.astype": _same,
    "relax.broadcast_to": _broadcast,
    "relax.expand_dims": _expand_dims,
    "relax.flatten": _reshape,
    "relax.nn.dropout": _same,
    "relax.permute_dims": _permute,
    "relax.reshape": _reshape,
    "relax.split": _split,
    "relax.squeeze": _squeeze,
    "relax.strided_slice": _strided_slice,
    "relax.take": _take,
}
"""Rules by operator."""
