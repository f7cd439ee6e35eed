"""Rules of operators that move, pick or look up data without computing."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from tvm import relax

from ...common.types import Array
from . import mixing, views
from .borders import ZEROS_ONLY, repeats_edges
from .builder import Builder, layer_of
from .computed import ConstantRow, Embedded, Linear
from .dispatch import Rule, by_kind
from .images import Pixels
from .inputs import TOKEN_IDS, Ids, as_ids
from .mismatch import Mismatch
from .mixing import Mixed, head_part, slice_channels
from .operands import integer, integers, optional_axes, split_bounds, static_shape
from .rules_tokens import token_run
from .scores import KeptTest
from .values import Computed, FromInputs, Hidden, Several, Value, Weight
from .views import Atom, Axis, View


def _movement(changed: Callable[[relax.Call, View], View]) -> Rule:
    """Return the rule of an operator that moves data."""

    def rule(c: Builder, call: relax.Call, op: str, value: Value) -> Value:
        return value.moved(c, op, lambda view, _missing: changed(call, view))

    return rule


_reshape = _movement(lambda call, view: views.reshape(view, static_shape(call)))
_permute = _movement(lambda call, view: views.permute(view, optional_axes(call.attrs.axes)))
_squeeze = _movement(lambda call, view: views.squeeze(view, optional_axes(call.attrs.axis)))


def _broadcast(c: Builder, call: relax.Call, op: str, value: Value) -> Value:
    return value.broadcast(c, op, static_shape(call))


def _expand_dims(c: Builder, call: relax.Call, op: str, value: Value) -> Value:
    return value.expanded(c, op, integers(call.attrs.axis))


def _dropout(_c: Builder, _call: relax.Call, _op: str, value: Value) -> Value:
    return Several((value, value))  # nothing at inference


def _cast(_c: Builder, call: relax.Call, op: str, value: Value) -> Value:
    if str(call.attrs.dtype) != "float32":
        raise Mismatch(f"a hidden tensor is cast to {call.attrs.dtype}; everything is float32 here")
    return value.after(op)


def _ids_view(ids: Ids, shape: tuple[int, ...], c: Builder) -> tuple[View, Axis]:
    """Layout of a tensor of indices, and the atoms that it does not have."""
    atoms: Axis = (*c.rows, c.seq_len) if ids.has_batch else (c.seq_len,)
    missing: Axis = () if ids.has_batch else c.rows
    flat: View = (atoms,)
    return views.reshape(flat, shape), missing


def _look_up(c: Builder, call: relax.Call, op: str, table: Weight, ids: FromInputs) -> Value:
    axis = optional_axes(call.attrs.axis)
    fixed = ids.fixed()
    if fixed is not None and fixed.ndim == 0:
        return _taken(table, fixed, None if axis is None else axis[0], table.layer)
    pairs = fixed is not None and fixed.size == c.seq_len.extent**2
    if fixed is not None and (c.images or pairs) and axis in ([0], None):
        # Images have one length, so rows at constant places are a table of that length. Rows for
        # pairs of tokens are a bias of scores, or nothing that is known.
        return _taken(table, fixed, 0, table.layer)
    if axis not in ([0], None) or table.array.ndim != 2:
        raise Mismatch(
            f"only rows of a matrix are looked up, not axis {axis} of {table.array.ndim} dimensions"
        )
    meaning = as_ids(ids.samples(), ids.shape, c.probes)
    name = layer_of(table.name)
    channels = table.array.shape[1]
    source: Computed
    if meaning.kind == "constant":
        if not 0 <= meaning.value < table.array.shape[0]:
            raise Mismatch(f"row {meaning.value} is outside of {table.array.shape[0]} rows")
        c.note(table.name, f"row {meaning.value} is used for every token: a constant")
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
        looked = _taken(table, fixed, 0, name)
        c.note_positions(table.array.shape[0] - meaning.value)
    view = (*view, views.channel_axis(channels))
    return Hidden(source, view, missing=missing, rows=looked, layer=name)


def _taken(table: Weight, places: Array, axis: int | None, layer: str) -> Weight:
    """Entries of a table at places that are known."""
    entries = table.array.size if axis is None else table.array.shape[axis]
    outside = places[(places < -entries) | (places >= entries)]
    if outside.size:
        raise Mismatch(f"entry {outside.flat[0]} of {table.name} is looked up, which has {entries}")
    rows = np.take(table.array, places.astype(np.int64), axis=axis)
    return Weight(table.name, rows, layer=layer)


def _without_absent(c: Builder, table: Weight) -> Weight:
    """Cut the row of the id that no text has off a table of words."""
    rows = table.array.shape[0]
    if c.absent_id is None:
        return table
    if c.absent_id != rows - 1:
        raise Mismatch(
            f"tokens become 0 where their id is {c.absent_id}: only the last id of a vocabulary, "
            f"here {rows - 1}, can be left out of it, so that no text has it"
        )
    c.note(table.name, f"row {c.absent_id}, the last, is left out")
    return Weight(table.name, table.array[:-1], layer=table.layer)


def _select(hidden: Hidden, axis: int, index: int, op: str) -> Hidden:
    """Token `index` of a hidden tensor; the axis stays with extent 1."""
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


def _take(c: Builder, call: relax.Call, op: str, value: Value, index: Value) -> Value:
    fixed, shape = index.fixed(), static_shape(call.args[0])
    axis = (optional_axes(call.attrs.axis) or [0])[0] % len(shape)
    if fixed is None or fixed.size != 1:
        if fixed is not None and repeats_edges(fixed, shape[axis]):
            raise Mismatch(f"a border repeats or mirrors what lies inside of it: {ZEROS_ONLY}")
        raise Mismatch("only one constant index may be taken of a hidden tensor")
    place = int(fixed.reshape(-1)[0])
    hidden = value.hidden(c)
    if [atom.kind for atom in hidden.view[axis]] == ["channel"]:
        place += views.shape_of(hidden.view)[axis] if place < 0 else 0
        selected = slice_channels(hidden, axis, place, place + 1, op)
    else:
        selected = _select(hidden, axis, place, op)
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
    c: Builder, value: Value, axis: int, first: int, last: int, op: str, step: int = 1
) -> Hidden | Mixed:
    if isinstance(value, Pixels):
        raise Mismatch(
            f"images or features are cut, which borders that wrap around do as well: {ZEROS_ONLY}"
        )
    tensor = value if isinstance(value, Mixed) else value.hidden(c)
    extent = views.shape_of(tensor.view)[axis]
    first, last = (min(max(i + extent if i < 0 else i, 0), extent) for i in (first, last))
    lanes = tensor if isinstance(tensor, Mixed) else None
    if step != 1 and isinstance(tensor, Hidden):
        lanes = head_part(tensor, axis, slice(None), op)
    if lanes is not None and [a.kind for a in views.merged(lanes.view[axis])] == ["lane"]:
        return mixing.chosen(lanes, axis, slice(first, last, step), op)
    if step != 1:
        raise Mismatch(f"a hidden tensor is sliced with the step {step}")
    hidden = tensor.hidden(c)
    if (first, last) == (0, extent):
        return hidden
    if views.is_tokens(hidden.view[axis]) and last == first + 1:
        if last == extent and hidden.view[axis] == (c.seq_len,):
            raise Mismatch("the last token is taken, which moves with the padding")
        return _select(hidden, axis, first, op)
    if views.is_tokens(hidden.view[axis]):
        return _slice_tokens(hidden, axis, first, last, op)
    if not isinstance(hidden.source, Linear):  # a norm of heads: nothing but a rotation reads parts
        lanes = head_part(hidden, axis, slice(first, last), op)
        if lanes is not None:
            return lanes
    return slice_channels(hidden, axis, first, last, op)


def _strided_slice(c: Builder, call: relax.Call, op: str, value: Value) -> Value:
    axes, begin, end = (integers(argument) for argument in call.args[1:4])
    strides = integers(call.args[4]) if len(call.args) > 4 else [1] * len(axes)
    rank = len(static_shape(call.args[0]))
    for axis, first, last, step in zip(axes, begin, end, strides, strict=True):
        value = _cut(c, value, axis % rank, first, last, op, step)
    return value


def _split(c: Builder, call: relax.Call, op: str, value: Value) -> Value:
    shape = static_shape(call.args[0])
    axis = integer(call.attrs.axis) % len(shape)
    bounds = itertools.pairwise(split_bounds(call, shape))
    return Several(tuple(_cut(c, value, axis, first, last, op) for first, last in bounds))


LAYOUT_RULES: dict[str, Rule] = {
    "relax.astype": by_kind(
        ((KeptTest,), lambda _c, _call, op, test: test.after(op)),
        ((Value,), _cast),
        otherwise="one tensor is cast",
    ),
    "relax.broadcast_to": _broadcast,
    "relax.expand_dims": _expand_dims,
    "relax.flatten": _reshape,
    "relax.nn.dropout": _dropout,
    "relax.permute_dims": _permute,
    "relax.reshape": _reshape,
    "relax.split": _split,
    "relax.squeeze": _squeeze,
    "relax.strided_slice": _strided_slice,
    "relax.take": by_kind(
        ((Weight, FromInputs), _look_up),
        ((Value, Value), _take),
        otherwise="one index is taken of one tensor",
    ),
}
"""Rules by operator."""
