"""Rules of operators that move, pick or look up data without computing."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from tvm import relax

from ...common.types import Array
from . import mixing, views
from .borders import ZEROS_ONLY, Bordered, bordered, repeats_edges
from .builder import Builder, layer_of
from .computed import ConstantRow, Embedded, Joined, Linear, LinearSum, Prepended, TokenRun
from .dispatch import Rule, by_kind
from .images import Pixels
from .inputs import TOKEN_IDS, Ids, as_ids
from .mismatch import Mismatch
from .mixing import Mixed, head_part, slice_channels
from .operands import integer, integers, optional_axes, split_bounds, static_shape
from .scores import KeptTest
from .values import Computed, FromInputs, Given, Hidden, Several, Value, Weight
from .views import Atom, Axis, View

# Rules of what joins tokens or channels, and of neighbours: concatenations and padding.


def token_run(hidden: Hidden, length: int, first: int, last: int, op: str) -> TokenRun:
    """Return tokens `first` to `last` of a hidden tensor whose sequences have `length`.

    Raises
    ------
    Mismatch
        If the tensor is scaled.
    """
    if hidden.factor != 1.0:
        raise Mismatch("tokens are taken of a tensor that was scaled")
    source: Computed = hidden.source
    start = 0
    if isinstance(source, TokenRun):
        start, length = source.first, source.length
        source = source.x
    first, last = start + first, start + last
    part = f"token{first}" if last == first + 1 else f"tokens{first}to{last - 1}"
    name = f"{source.name}.{part}"
    return TokenRun(name, source.channels, (*hidden.ops, op), source, first, last, length)


def _concat(c: Builder, call: relax.Call, op: str, operands: Several) -> Value:
    parts, along = operands.parts, integer(call.attrs.axis)
    mixed = _parts_of_heads(parts, along, op)
    if mixed is None and len(parts) == 2 and isinstance(parts[1], Mixed):
        mixed = mixing.behind_others(parts[1], parts[0].hidden(c), along, op)
    if mixed is not None:
        return mixed
    if isinstance(parts[-1], Given):
        raise Mismatch(
            "learned rows are put behind hidden tensors, and only before tokens they may"
        )
    last = parts[-1].hidden(c)
    axis = along % len(last.view)
    if all(item.kind == "channel" for item in last.view[axis]) and last.view[axis]:
        return _join_channels([item.hidden(c) for item in parts], axis, op)
    rows = [_rows(item) for item in parts[:-1]]
    known = [item for item in rows if item is not None]
    if rows and len(known) == len(rows):
        return _prepend(c, known, last, axis, op)
    first = parts[0].hidden(c)
    if rows and rows[0] is None and len(known) == len(rows) - 1 and axis == 1:
        return _insert(first, known, last, op)
    raise Mismatch("hidden tensors are joined, and only learned tokens before a sequence are")


def _parts_of_heads(values: Sequence[Value], axis: int, op: str) -> Mixed | None:
    """Join channels of each head again; None if that is not what is joined."""
    parts = [part for value in values if (part := mixing.as_mixed(value)) is not None]
    bases = {(part.base.source, part.base.view) for part in parts}
    if len(parts) < len(values) or len(bases) > 1:
        return None
    axis %= len(parts[0].view)
    kinds = {atom.kind for value in parts for atom in value.view[axis]}
    return mixing.joined(parts, axis, op) if kinds <= {"lane"} else None


def _prepend(c: Builder, rows: Sequence[Weight], hidden: Hidden, axis: int, op: str) -> Hidden:
    """Put learned rows before the tokens of every sequence."""
    hidden.require_all_channels()
    tokens = views.merged(hidden.view[1]) if len(hidden.view) == 3 else ()
    if axis != 1 or hidden.view[0] != (c.batch,) or not views.is_tokens(tokens):
        raise Mismatch(
            f"learned rows are put before axis {axis} of {views.describe(hidden.view)}, and only "
            "before the tokens of a sequence they have a form"
        )
    if tokens[0].kind == "sequence" and not c.images:
        raise Mismatch(
            "learned tokens are put before a sequence of any length, whose padding mask does not "
            "cover them"
        )
    prefix = Weight(rows[0].name, np.concatenate([item.array for item in rows]))
    x = hidden.emit(c)
    source = Prepended(prefix.name, x.channels, (*hidden.ops, op), x, prefix)
    whole = Atom("patch", len(prefix.array) + tokens[0].extent)
    return Hidden(source, ((c.batch,), (whole,), hidden.view[2]), layer=hidden.layer)


def _insert(before: Hidden, rows: Sequence[Weight], behind: Hidden, op: str) -> Hidden:
    """Put learned rows among those before a sequence that was cut there: registers."""
    rest = behind.source
    if (
        not isinstance(rest, TokenRun)
        or not rest.behind(before.source)
        or not isinstance(rest.x, Prepended)
    ):
        raise Mismatch("tokens are joined that are not both parts of one sequence, cut once")
    whole, place = rest.x, rest.first
    if place > len(whole.rows.array):
        raise Mismatch("learned rows are put between tokens, and not before all of them")
    new = np.concatenate([item.array for item in rows])
    prefix = Weight(whole.rows.name, np.insert(whole.rows.array, [place] * len(new), new, axis=0))
    table = whole.table
    if table is not None:  # positions were added before
        empty = np.zeros_like(new)
        table = replace(table, array=np.insert(table.array, [place] * len(new), empty, axis=0))
    source = replace(whole, rows=prefix, table=table, ops=(*whole.ops, op))
    tokens = Atom("patch", rest.length + len(new))
    return replace(behind, source=source, view=(behind.view[0], (tokens,), behind.view[2]), ops=())


def _rows(value: Value) -> Weight | None:
    """Return learned rows [N, C] of a tensor [batch, N, C] that is the same in every batch row."""
    array = value.fixed() if isinstance(value, Given) else None
    if array is None or array.ndim != 3:
        return None
    if not np.array_equal(array, np.broadcast_to(array[:1], array.shape)):
        return None
    name = value.name if isinstance(value, Weight) else "tokens"
    return Weight(name, np.asarray(array[0], np.float32), layer=value.layer)


def _join_channels(parts: Sequence[Hidden], axis: int, op: str) -> Hidden:
    """Put the channels of several tensors one after the other."""
    first = parts[0]
    for part in parts:
        others = [part.view[:axis], part.view[axis + 1 :], part.missing]
        if others != [first.view[:axis], first.view[axis + 1 :], first.missing]:
            raise Mismatch("tensors are joined that are laid out differently")
        if views.merged(part.view[axis]) != views.channel_axis(part.source.channels):
            raise Mismatch("a part of the channels of a tensor is joined with others")
    channels = sum(part.source.channels for part in parts)
    ops = (*(o for part in parts for o in part.ops), op)
    source = Joined(first.source.name, channels, ops, tuple(parts))
    view = (*first.view[:axis], views.channel_axis(channels), *first.view[axis + 1 :])
    return Hidden(source, view, missing=first.missing, layer=first.layer)


def joined_product(
    joined: Joined, weight: Weight, product: Callable[[Hidden, Weight], Hidden]
) -> LinearSum:
    """Return the product of joined channels and a matrix: the sum of a product for each part.

    Parameters
    ----------
    joined
        The operand.
    weight
        [channels, outputs].
    product
        Multiplies a hidden tensor by a matrix, giving a `Linear`.

    Returns
    -------
    LinearSum
        The sum.

    Raises
    ------
    Mismatch
        If the matrix has another number of rows.
    """
    if len(weight.array) != joined.channels:
        raise Mismatch(
            f"the weight {weight.name} has {len(weight.array)} rows for {joined.channels} channels"
        )
    terms: list[Linear] = []
    first = 0
    for part in joined.parts:
        last = first + part.source.channels
        rows = replace(
            weight, name=f"{weight.name}[{first}:{last}]", array=weight.array[first:last]
        )
        source = product(part, rows).source
        if not isinstance(source, Linear):
            raise Mismatch("a part of joined channels is no operand of a linear layer")
        terms.append(source)
        first = last
    head = terms[0]
    return LinearSum(head.name, head.channels, joined.ops, tuple(terms))


def _pad(c: Builder, call: relax.Call, op: str, value: Value) -> Value:
    """Zeros beside a convolution, or where a slice left out as many tokens at the other end."""
    widths = np.reshape(integers(call.attrs.pad_width), (-1, 2))
    mode, number = str(call.attrs.pad_mode), float(getattr(call.attrs, "pad_value", 0.0))
    if (mode, number) != ("constant", 0.0):
        filled = f"filled with {number:g}" if mode == "constant" else f"made by {mode}"
        raise Mismatch(f"a border is {filled}: {ZEROS_ONLY}")
    x = value if isinstance(value, Pixels | Bordered) else value.hidden(c)
    if isinstance(x, Hidden) and isinstance(x.source, TokenRun):
        axes = [i for i, item in enumerate(x.view) if [atom.kind for atom in item] == ["run"]]
        if len(axes) == 1 and np.flatnonzero(widths.any(axis=1)).tolist() in ([], axes):
            return _shifted(c, x, x.source, axes[0], widths[axes[0]].tolist(), op)
    return bordered(x, op, widths)


def _shifted(
    c: Builder, x: Hidden, source: TokenRun, axis: int, zeros: Sequence[int], op: str
) -> Hidden:
    """Zeros in the place of the tokens that a slice left out at the other end: a shift."""
    before, after = zeros
    distance = source.first - before
    shifted = (max(distance, 0), min(source.length, source.length + distance))
    if (source.first, source.last) != shifted or (before, after) != (
        max(-distance, 0),
        max(distance, 0),
    ):
        raise Mismatch("tokens are cut off and zeros are put elsewhere, or not as many")
    ops = (*source.ops, *x.ops, op)
    tokens = source.x.emit(c)
    moved = tokens.then(c, "shift_tokens", ops, suffix="shifted", distance=distance)
    view = tuple((c.seq_len,) if i == axis else item for i, item in enumerate(x.view))
    return Hidden(moved, view, missing=x.missing, layer=x.layer)


TOKEN_RULES: dict[str, Rule] = {
    "relax.concat": _concat,
    "relax.nn.pad": _pad,
    "relax.slice_scatter": by_kind(
        otherwise="a part of a tensor is overwritten, which borders that wrap around do as well: "
        + ZEROS_ONLY
    ),
}
"""Rules by operator."""


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
