"""How a tensor of the source graph lays out the elements of a canonical value.

Reshapes, transposes and broadcasts between two operators have no counterpart in the canonical
form, where hidden values are always [batch, seq_len, channels]. A `View` follows them: for every
axis of the source tensor it lists the *atoms* that the axis enumerates, slowest first. Splitting
384 channels into 12 heads of 32 makes two atoms of one; merging batch and sequence puts two atoms
into one axis. Nothing here looks at sizes to guess a meaning: the meaning comes from the operator
that made the value and is carried along.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from ...common.types import Longs
from .mismatch import Mismatch


class ViewError(Mismatch):
    """A movement of data that a view cannot express; the text is the reason."""


@dataclass(frozen=True)
class Atom:
    """A run of indices that no reshape has divided further.

    Parameters
    ----------
    kind
        ``batch``, ``sequence``, ``channel``, ``lane`` (of a head, see `mixing`), ``repeat`` (of
        what lies before it: heads of keys that several of the queries share), and in attention
        scores ``head``, ``query``, ``key``. Of images: ``plane`` (colour), ``row``, ``column``, and
        ``patch``, which is a sequence of static length. ``run``: a part of a sequence of any
        length.
    extent
        Number of indices, in the probe shape for batch and sequence.
    stride
        Distance in the index of the whole run (channels, heads, patches, rows of pixels); 1 for
        others.
    """

    kind: str
    extent: int
    stride: int = 1


Axis = tuple[Atom, ...]
"""Atoms of one axis, slowest first; empty for an axis of extent 1."""
View = tuple[Axis, ...]
"""All axes of a tensor."""


HIDDEN_AXES = 3
"""Of a hidden tensor; where there are more, heads have one, if only for one of them."""
# Kinds whose extent is no probe shape, so that a reshape may divide and join them.
_RUNS = ("channel", "lane", "head", "patch", "plane", "row", "column")


def is_tokens(axis: Axis) -> bool:
    """Tell whether an axis enumerates the tokens of a sequence, in order."""
    atoms = merged(axis)
    return len(atoms) == 1 and atoms[0].kind in ("sequence", "patch") and atoms[0].stride == 1


def channel_axis(channels: int) -> Axis:
    """Return the axis that enumerates all `channels` in order."""
    return (Atom("channel", channels),) if channels > 1 else ()


def row_width(view: View, channels: int) -> int:
    """Return how many channels the last axis has, if they are all of them, or those of a head.

    Parameters
    ----------
    view
        Layout of a hidden tensor.
    channels
        All channels of a token.

    Returns
    -------
    int
        A divisor of them; 0 if the last axis is no run of channels in order.
    """
    last = merged(view[-1]) if view else ()
    if len(last) != 1 or last[0].kind != "channel" or last[0].stride != 1:
        return 0
    return 0 if channels % last[0].extent else last[0].extent


def shape_of(view: View) -> tuple[int, ...]:
    """Return the extents of the axes."""
    return tuple(prod(atom.extent for atom in axis) for axis in view)


def flatten(view: Sequence[Axis]) -> Axis:
    """Return all atoms in order, as one axis."""
    return tuple(atom for axis in view for atom in axis)


def merged(axis: Axis) -> Axis:
    """Join neighbouring atoms of one kind that together enumerate a contiguous run."""
    result: list[Atom] = []
    for atom in axis:
        last = result[-1] if result else None
        if (
            last is not None
            and last.kind == atom.kind
            and atom.kind in _RUNS
            and last.stride == atom.stride * atom.extent
        ):
            result[-1] = Atom(atom.kind, last.extent * atom.extent, atom.stride)
        else:
            result.append(atom)
    return tuple(result)


def describe(view: View) -> str:
    """Return a text like ``[batch, heads*..., 32 channels]`` for messages."""

    def one(axis: Axis) -> str:
        runs = {"channel": "channels", "lane": "channels of a head"}
        names = [f"{a.extent} {runs[a.kind]}" if a.kind in runs else a.kind for a in merged(axis)]
        return "*".join(names) or "1"

    return "[" + ", ".join(one(axis) for axis in view) + "]"


def reshape(view: View, shape: Sequence[int]) -> View:
    """Regroup the atoms of `view` into axes of the extents `shape`.

    Parameters
    ----------
    view
        The tensor before.
    shape
        The extents after; their product must not change.

    Returns
    -------
    View
        The tensor after.

    Raises
    ------
    ViewError
        If an axis boundary would cut batch or sequence, or divide a run of channels unevenly.
    """
    pending = list(merged(flatten(view)))
    pending.reverse()
    result: list[Axis] = []
    for extent in shape:
        axis: list[Atom] = []
        have = 1
        while have < extent:
            if not pending:
                raise ViewError(f"the shape {tuple(shape)} does not hold {describe(view)}")
            atom = pending.pop()
            if have * atom.extent > extent or extent % (have * atom.extent):
                need = extent // have
                if extent % have or atom.extent % need or atom.kind not in _RUNS:
                    raise ViewError(
                        f"{describe(view)} cannot become {tuple(shape)}: an axis would be cut "
                        f"inside {atom.kind}"
                    )
                inner = atom.extent // need
                pending.append(Atom(atom.kind, inner, atom.stride))
                atom = Atom(atom.kind, need, atom.stride * inner)
            axis.append(atom)
            have *= atom.extent
        result.append(tuple(axis))
    if pending:
        raise ViewError(f"the shape {tuple(shape)} does not hold {describe(view)}")
    return tuple(result)


def permute(view: View, axes: Sequence[int] | None) -> View:
    """Return the view with its axes in the order `axes` (reversed for None)."""
    order = list(range(len(view)))[::-1] if axes is None else [a % len(view) for a in axes]
    return tuple(view[axis] for axis in order)


def expand_dims(view: View, axes: Sequence[int]) -> View:
    """Insert axes of extent 1 at the positions `axes` of the result."""
    result = list(view)
    rank = len(view) + len(axes)
    for axis in sorted(a % rank for a in axes):
        result.insert(axis, ())
    return tuple(result)


def squeeze(view: View, axes: Sequence[int] | None) -> View:
    """Remove axes of extent 1: those in `axes`, or all of them for None."""
    rank = len(view)
    if axes is None:
        return tuple(axis for axis in view if axis)
    gone = {axis % rank for axis in axes}
    for axis in gone:
        if view[axis]:
            raise ViewError(f"axis {axis} of {describe(view)} has more than one element")
    return tuple(item for axis, item in enumerate(view) if axis not in gone)


def broadcast(view: View, shape: Sequence[int], missing: Axis) -> View:
    """Broadcast `view` to `shape`, where only atoms in `missing` and heads may be repeated.

    Parameters
    ----------
    view
        The tensor before.
    shape
        The shape after.
    missing
        Atoms that the value does not depend on, which therefore may appear in any axis of their
        extent: the batch, for a table of positions.

    Returns
    -------
    View
        The tensor after.

    Raises
    ------
    ViewError
        If anything else would be repeated.
    """
    padded: list[Axis] = [()] * (len(shape) - len(view)) + list(view)
    extents = shape_of(tuple(padded))
    left = list(missing)
    by_head = len(view) > HIDDEN_AXES
    for position, (have, want) in enumerate(zip(extents, shape, strict=True)):
        if have == want:
            continue
        atom = next((a for a in left if a.extent == want), None)
        if have != 1 or (atom is None and (not by_head or position + 1 == len(padded))):
            raise ViewError(f"{describe(view)} would be repeated to {tuple(shape)}")
        if atom is not None:
            left.remove(atom)
        padded[position] = (atom or Atom("repeat", want),)
    return tuple(padded)


def channel_order(axis: Axis, channels: int) -> Longs | None:
    """Return the channel at every place of an axis, or None if it does not hold each once."""
    order = np.zeros(1, np.int64)
    for atom in axis:
        if atom.kind != "channel":
            return None
        steps = np.arange(atom.extent, dtype=np.int64) * atom.stride
        order = (order[:, None] + steps).reshape(-1)
    return order if np.array_equal(np.sort(order), np.arange(channels)) else None
