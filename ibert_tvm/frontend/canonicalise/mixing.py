"""Channels of a head that are mixed by position, on the way to a rotation.

Rotary embeddings are written in many ways: halves that are cut, negated and joined, halves that are
turned each by itself, every second channel, a part of a head only; before or after the heads are
moved to the front. All of them are sums of channels of one head with factors that depend on the
place of the token, and that is what is followed: a `Mixed` value says for each of its *lanes* which
channels of the head it adds up, with which factors. What the sum is, is decided where it is read
(`rotations`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from ...common.types import Array, Doubles, Longs
from . import functions, views
from .builder import Builder, layer_of
from .computed import Linear, TokenRun
from .mismatch import Mismatch
from .rotations import Term, fit_rotation
from .values import Change, Hidden, Pointwise, Recognised, Scalable, Value
from .views import Atom, Axis, View

Lanes = tuple[list[int], Longs]
"""Axes of a tensor that enumerate lanes, and the lane at each of their places."""


@dataclass(frozen=True, eq=False)
class Mixed(Recognised, Scalable):
    """Sums of channels of each head, on the way to a rotation; see `mixing`.

    Parameters
    ----------
    base
        What the channels are those of.
    axis
        Axis of it that enumerates the channels of a head.
    view
        Layout of the tensor, with atoms ``lane`` in the place of the channels of a head.
    terms
        They are added up.
    """

    base: Hidden
    axis: int
    view: View
    terms: tuple[Term, ...]

    WHAT: ClassVar[str] = "channels of heads that are mixed by position"

    def times(self, number: float, op: str) -> Mixed:
        return scaled(self, number, (*self.ops, op))

    def elementwise(self, c: Builder, op: str) -> Value:
        if op == "relax.negative":
            return self.times(-1.0, op)
        return self.hidden(c).elementwise(c, op)

    def recognised(self, c: Builder) -> Hidden:
        return _recognised(c, self)

    def moved(self, c: Builder, op: str, change: Change) -> Value:
        lanes = in_layout(self, change(self.view, self.base.missing), op)
        return self.hidden(c).moved(c, op, change) if lanes is None else lanes


@dataclass(frozen=True, eq=False)
class HeadPart(Hidden):
    """A hidden tensor that was cut out of each head of another one.

    Parameters
    ----------
    part
        The same tensor, before the factor, as lanes of a head.
    """

    part: Mixed = field(kw_only=True)

    def rearranged(self, change: Change, op: str) -> Hidden:
        plain = super().rearranged(change, op)
        part = in_layout(self.part, change(self.part.view, self.missing), op)
        return _of_part(plain, part)


def _of_part(plain: Hidden, part: Mixed | None) -> Hidden:
    """A hidden tensor that is a part of heads, or is none."""
    given = (plain.source, plain.view, plain.factor, plain.missing)
    if part is None:
        return Hidden(*given, ops=plain.ops, layer=plain.layer)
    return HeadPart(*given, ops=plain.ops, layer=plain.layer, part=part)


def as_mixed(value: Value) -> Mixed | None:
    """Return a value as lanes that are channels of a head; None if it is not made of such.

    Parameters
    ----------
    value
        A hidden tensor, one times a number, or a part of a head that was cut out of it.
    """
    if isinstance(value, Mixed):
        return value
    if isinstance(value, Pointwise):
        slope, of = functions.slope(value.samples), as_mixed(value.base)
        return None if slope is None or of is None else scaled(of, slope, value.ops)
    if not isinstance(value, Hidden):
        return None
    if isinstance(value, HeadPart):
        return scaled(value.part, value.factor, value.part.ops)
    axis = head_axis(value)
    if axis is None:
        return None
    count = views.shape_of(value.view)[axis]
    base = replace(value, factor=1.0, ops=())
    view = tuple(lane_axis(count) if i == axis else a for i, a in enumerate(value.view))
    term = Term(np.arange(count), np.full((1, count), value.factor))
    return Mixed(base, axis, view, (term,), ops=value.ops, layer=value.layer)


def head_axis(hidden: Hidden) -> int | None:
    """Return the axis that enumerates neighbouring channels of each head; None if there is none."""
    for axis, atoms in enumerate(map(views.merged, hidden.view)):
        if len(atoms) == 1 and atoms[0].kind == "channel" and atoms[0].stride == 1:
            return axis
    return None


def lane_axis(count: int, stride: int = 1) -> Axis:
    """Return an axis of lanes."""
    return (Atom("lane", count, stride),) if count > 1 else ()


def lanes_of(view: View, also: int | None = None) -> Lanes:
    """Return which lane is where: by all axes of lanes, and the axis `also`, of extent 1 or one.

    Raises
    ------
    Mismatch
        If an axis enumerates lanes and something else, or `also` only something else.
    """
    axes = [i for i, axis in enumerate(view) if i == also or any(a.kind == "lane" for a in axis)]
    ids = np.zeros((), np.int64)
    for axis in axes:
        if any(atom.kind != "lane" for atom in view[axis]):
            raise Mismatch(
                f"axis {axis} of {views.describe(view)} is not channels of one head alone"
            )
        own = np.zeros(1, np.int64)
        for atom in view[axis]:
            own = (own[:, None] + np.arange(atom.extent) * atom.stride).reshape(-1)
        ids = ids[..., None] + own
    return axes, ids


def _with_lanes(
    value: Mixed, axes: Sequence[int], shape: Sequence[int], terms: Sequence[Term]
) -> Mixed:
    """Return the value with other lanes, counted along `axes`."""
    view, stride = list(value.view), 1
    for axis, count in zip(reversed(axes), reversed(shape), strict=True):
        view[axis] = lane_axis(count, stride)
        stride *= count
    return replace(value, view=tuple(view), terms=tuple(terms))


def chosen(value: Mixed, axis: int, places: slice, op: str) -> Mixed:
    """Return the lanes at some places of an axis."""
    axes, ids = lanes_of(value.view, axis)
    kept = ids[(slice(None),) * axes.index(axis) + (places,)]
    terms = [term.at(kept.reshape(-1)) for term in value.terms]
    return _with_lanes(value, axes, kept.shape, terms).after(op)


def joined(values: Sequence[Mixed], axis: int, op: str) -> Mixed:
    """Return lanes joined along an axis.

    Raises
    ------
    Mismatch
        If they are not lanes of one head.
    """
    first = values[0]
    _require_one_base(values, "joined")
    found = [lanes_of(value.view, axis) for value in values]
    axes = found[0][0]
    if any(other != axes for other, _ in found) or len({_outer(v, axes) for v in values}) > 1:
        raise Mismatch("parts of a head are joined that are laid out differently")
    count = max(len(value.terms) for value in values)
    terms, along = [], axes.index(axis)
    shape = np.concatenate([ids for _, ids in found], axis=along).shape
    for index in range(count):
        channels, factors = [], []
        for value, (_, ids) in zip(values, found, strict=True):
            flat = ids.reshape(-1)
            empty = Term(flat * 0, np.zeros((1, flat.size)))
            term = value.terms[index].at(flat) if index < len(value.terms) else empty
            channels.append(term.channels.reshape(ids.shape))
            factors.append(term.factors.reshape(-1, *ids.shape))
        rows = max(len(factor) for factor in factors)
        whole = [np.broadcast_to(f, (rows, *f.shape[1:])) for f in factors]
        terms.append(
            Term(
                np.concatenate(channels, axis=along).reshape(-1),
                np.concatenate(whole, axis=along + 1).reshape(rows, -1),
            )
        )
    ops = tuple(name for value in values for name in value.ops)
    return replace(_with_lanes(first, axes, shape, terms), ops=(*ops, op))


def behind_others(value: Mixed, first: Hidden, axis: int, op: str) -> Mixed | None:
    """Return the tokens `first` of a tensor, as they are, before the later ones of it in `value`.

    Parameters
    ----------
    value
        Of a run of tokens to the end.
    first
        The run before.
    axis
        Along which they are joined.
    op
        The operator that joins them.

    Returns
    -------
    Mixed or None
        Of the whole tensor; None if they are other tensors, or other tokens.
    """
    start, rest, own = first.source, value.base.source, as_mixed(first)
    if own is None or not isinstance(rest, TokenRun) or not rest.behind(start):
        return None
    axis %= len(own.view)
    if not views.is_tokens(value.view[axis]):
        return None
    whole = _of_patches(own.view, axis, rest.length)
    (axes, ids), (_, more) = lanes_of(own.view), lanes_of(value.view)
    if whole is None or whole != _of_patches(value.view, axis, rest.length):
        return None
    terms = [term.at(ids.reshape(-1)).among(0, rest.first, rest.length) for term in own.terms]
    terms += [
        term.at(more.reshape(-1)).among(rest.first, rest.last, rest.length) for term in value.terms
    ]
    view = _of_patches(value.base.view, axis, rest.length)
    if view is None:
        return None
    base = replace(value.base, source=rest.x, view=view)
    joined_up = replace(value, base=base, view=whole, ops=(*own.ops, *value.ops, op))
    return _with_lanes(joined_up, axes, ids.shape, terms)


def _of_patches(view: View, axis: int, count: int) -> View | None:
    """The layout with `count` patches in an axis of some; None if it enumerates anything else."""
    if any(atom.kind != "patch" for atom in view[axis]):
        return None
    return (*view[:axis], (Atom("patch", count),), *view[axis + 1 :])


def _outer(value: Mixed, axes: Sequence[int]) -> View:
    return tuple(axis for i, axis in enumerate(value.view) if i not in axes)


def _require_one_base(values: Sequence[Mixed], what: str) -> None:
    if len({(value.base.source, value.base.view, value.axis) for value in values}) > 1:
        raise Mismatch(f"channels of several hidden tensors are {what}")


def scaled(value: Mixed, number: float, ops: tuple[str, ...]) -> Mixed:
    """Return a value times a number."""
    terms = tuple(Term(term.channels, term.factors * number) for term in value.terms)
    return replace(value, terms=terms, ops=ops)


def added(left: Mixed, right: Mixed, sign: int, op: str) -> Mixed:
    """Return ``left + sign right``.

    Raises
    ------
    Mismatch
        If they are not lanes of one head.
    """
    _require_one_base((left, right), "added")
    (axes, ids), (others, more) = lanes_of(left.view), lanes_of(right.view)
    if axes != others or ids.shape != more.shape or _outer(left, axes) != _outer(right, axes):
        raise Mismatch("parts of a head are added that are laid out differently")
    terms = [term.at(ids.reshape(-1)) for term in left.terms]
    terms += [term.at(more.reshape(-1)) for term in scaled(right, sign, ()).terms]
    ops = (*left.ops, *right.ops, op)
    return replace(_with_lanes(left, axes, ids.shape, terms), ops=ops)


def turned(value: Mixed, array: Array, op: str) -> Mixed:
    """Return a value times numbers that depend on position and lane.

    Parameters
    ----------
    value
        The value.
    array
        The numbers; broadcast to the shape of the tensor.
    op
        The operator.

    Raises
    ------
    Mismatch
        If they depend on anything else.
    """
    axes, ids = lanes_of(value.view)
    factors = _by_position(array, value.view, axes).reshape(-1, ids.size)
    terms = []
    for term in value.terms:
        own = term.at(ids.reshape(-1))
        terms.append(Term(own.channels, own.factors * factors))
    return _with_lanes(value, axes, ids.shape, terms).after(op)


def differs_by_position(array: Array, view: View) -> bool:
    """Tell whether what a hidden tensor is multiplied by depends on the place of the token."""
    try:
        wide = np.broadcast_to(array, views.shape_of(view))
    except ValueError:
        return False
    tokens = [i for i, axis in enumerate(view) if views.is_tokens(axis)]
    return any(
        wide.strides[i] != 0 and bool(np.any(wide != wide.take([0], axis=i))) for i in tokens
    )


def _by_position(array: Array, view: View, axes: Sequence[int]) -> Doubles:
    """Return numbers as [positions, *lanes], positions 1 where nothing depends on them."""
    shape = views.shape_of(view)
    try:
        wide = np.broadcast_to(array, shape)
    except ValueError as error:
        raise Mismatch(f"factors of shape {array.shape} do not fit {shape}") from error
    tokens = [i for i, axis in enumerate(view) if views.is_tokens(axis)]
    for i in range(len(shape)):
        if i in axes or i in tokens:
            continue
        if wide.strides[i] != 0 and np.any(wide != wide.take([0], axis=i)):
            raise Mismatch(
                f"channels are multiplied by numbers that differ along axis {i} of "
                f"{views.describe(view)}; those of a rotation depend on position and channel alone"
            )
        wide = wide.take([0], axis=i)
    order = [*tokens, *axes, *(i for i in range(len(shape)) if i not in (*tokens, *axes))]
    rows = wide.transpose(order).reshape(-1, *(shape[i] for i in axes)).astype(np.float64)
    return rows[:1] if np.array_equal(rows, np.broadcast_to(rows[:1], rows.shape)) else rows


def in_layout(value: Mixed, view: View, op: str) -> Mixed | None:
    """Return a value in another layout; None if it has no lanes of their own there."""
    try:
        lanes_of(view)
    except Mismatch:
        return None
    return value.after(op, view=view)


def mixed_sum(_c: Builder, op: str, left: Mixed, right: Mixed) -> Mixed:
    """Interpret a sum or difference of channels of one head."""
    return added(left, right, 1 if op == "relax.add" else -1, op)


def turned_by(_c: Builder, op: str, one: Mixed | Hidden | Pointwise, other: Value) -> Mixed | None:
    """Interpret channels of heads times numbers by position; None if they are no such."""
    table = _table(other)
    known = table is not None and differs_by_position(table, one.view)
    mixed = as_mixed(one) if known else None
    return None if mixed is None or table is None else turned(mixed, table, op)


def turns(value: Value, view: View) -> bool:
    """Tell whether a value holds numbers that differ along the tokens of a tensor in `view`."""
    table = _table(value)
    return table is not None and differs_by_position(table, view)


def _table(value: Value) -> Array | None:
    """Numbers that are the same in every run; None if a value holds no such."""
    array = value.fixed()
    return None if array is None or array.dtype.kind != "f" else array


# -- what they are in the end --------------------------------------------------------------


def _recognised(c: Builder, value: Mixed) -> Hidden:
    """Recognise a rotation of the channels of each head, and emit it."""
    _, lanes = lanes_of(value.view)
    used = [term.channels[np.any(term.factors != 0, axis=0)] for term in value.terms]
    first = int(min((channels.min() for channels in used if channels.size), default=0))
    base, count = value.base, lanes.size
    width = views.shape_of(base.view)[value.axis]
    if any(channels.max(initial=0) >= first + count for channels in used):
        raise Mismatch("channels of a head are picked, in another order or with steps")
    if count < width:
        base = slice_channels(base, value.axis, first, first + count, value.ops[-1])
    terms = tuple(replace(term, channels=term.channels - first) for term in value.terms)
    tokens = [axis for axis in value.view if views.is_tokens(axis)]
    if len(tokens) != 1:
        raise Mismatch(f"{views.describe(value.view)} has no axis of positions")
    found = fit_rotation(terms, count, views.shape_of((tokens[0],))[0])
    interleaved = found is not None and found.interleaved
    # Heads that lay between those of keys and values move closer together with the cut.
    view = tuple(
        tuple(
            atom
            for lane in axis
            for atom in _channels_of(_closer(lane, width, count), count, interleaved)
        )
        for axis in value.view
    )
    if found is None:
        return Hidden(base.source, view, base.factor, base.missing, ops=value.ops, layer=base.layer)
    x = (_halves(c, base, count) if interleaved else base).emit(c)
    if x.var.ty.ndim != 3 or x.channels % count:
        raise Mismatch(f"{x.name} is rotated, which is not queries or keys of a sequence")
    table = c.weight("rotary", c.whole_rotation(found.table))
    made = x.then(c, "rotate", value.ops, table, num_heads=x.channels // count)
    layer = layer_of(x.name)
    return Hidden(made, view, found.amplitude, base.missing, layer=layer)


def _halves(c: Builder, base: Hidden, width: int) -> Hidden:
    """Reorder the rows of a linear layer: pairs of neighbours come to lie half a head apart."""
    source = base.source
    if not isinstance(source, Linear):
        raise Mismatch(
            f"neighbouring channels of {source.name} are rotated as pairs, and only the "
            "channels of a linear layer can be reordered for that"
        )

    def reorder() -> Linear:
        order = np.arange(source.channels).reshape(-1, width // 2, 2).swapaxes(1, 2).reshape(-1)
        c.note(source.name, "rows reordered: pairs that are rotated lie half a head apart")
        return source.changed(lambda array: array[order])

    return replace(base, source=c.once(("halves", source), reorder))


def _closer(atom: Atom, width: int, count: int) -> Atom:
    """Heads of `width` channels of which `count` are left."""
    if atom.kind != "channel" or atom.stride < width:
        return atom
    return Atom("channel", atom.extent, atom.stride // width * count)


def _channels_of(lane: Atom, count: int, interleaved: bool) -> Axis:
    """Channels that lanes of a head are; neighbours lie half a head apart if it is interleaved."""
    if lane.kind != "lane":
        return (lane,)
    if not interleaved:
        return (Atom("channel", lane.extent, lane.stride),)
    if lane.stride % 2 == 0:
        return (Atom("channel", lane.extent, lane.stride // 2),)
    if lane.extent % 2:
        raise Mismatch("pairs of channels that are rotated are taken apart")
    pairs = (Atom("channel", lane.extent // 2),) if lane.extent > 2 else ()
    return (*pairs, Atom("channel", 2, count // 2))


def slice_channels(hidden: Hidden, axis: int, first: int, last: int, op: str) -> Hidden:
    """Channels `first` to `last` of a linear layer: rows of its weight."""
    source = hidden.source
    atoms = views.merged(hidden.view[axis])
    if not isinstance(source, Linear) or len(atoms) != 1 or atoms[0].kind != "channel":
        raise Mismatch(
            f"{views.describe(hidden.view)} is cut along axis {axis}, which only the channels of a "
            "linear layer allow"
        )
    stride, extent = atoms[0].stride, atoms[0].extent
    outer = [a for item in hidden.view for a in item if a.kind == "channel" and a.stride > stride]
    everything = np.arange(source.channels).reshape(-1, extent, stride)
    kept = everything[:, first:last, :].reshape(-1)
    # Heads may interleave queries, keys and values; the step tells their parts apart.
    step = "" if len(everything) == 1 else f":{extent * stride}"
    part = f"[{kept[0]}:{kept[-1] + 1}{step}]"
    # Atoms outside of the cut one move closer together; those inside stay.
    width = last - first
    moved = {a: Atom("channel", a.extent, a.stride // extent * width) for a in outer}
    view = tuple(
        tuple(moved.get(a, a) for a in item)
        if i != axis
        else ((Atom("channel", width, stride),) if width > 1 else ())
        for i, item in enumerate(hidden.view)
    )
    cut = source.changed(
        lambda array: array[kept],
        part,
        name=f"{source.name}{part}",
        channels=len(kept),
        ops=(*source.ops, *hidden.ops, op),
    )
    lanes = head_part(hidden, axis, slice(first, last), op)
    plain = Hidden(cut, view, hidden.factor, hidden.missing, layer=hidden.layer)
    return _of_part(plain, lanes)


def head_part(hidden: Hidden, axis: int, places: slice, op: str) -> Mixed | None:
    """Return channels that are cut out of each head as lanes of it; None if they are no such.

    All channels in one axis are those of projections side by side, not of a head, unless heads have
    an axis of their own, if only for one of them.
    """
    everything = views.shape_of(hidden.view)[axis] == hidden.source.channels
    if not isinstance(hidden, HeadPart) and everything and len(hidden.view) <= views.HIDDEN_AXES:
        return None
    whole = as_mixed(replace(hidden, factor=1.0))
    if whole is None or [atom.kind for atom in views.merged(whole.view[axis])] != ["lane"]:
        return None
    return chosen(whole, axis, places, op)
