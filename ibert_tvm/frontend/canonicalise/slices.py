"""Runs of channels that are cut out of a hidden tensor."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from . import mixing, views
from .values import Hidden, Linear, Mismatch, Mixed
from .views import Atom


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
    return Hidden(cut, view, hidden.factor, hidden.missing, lanes, layer=hidden.layer)


def head_part(hidden: Hidden, axis: int, places: slice, op: str) -> Mixed | None:
    """Return channels that are cut out of each head as lanes of it; None if they are no such.

    All channels in one axis are those of projections side by side, not of a head, unless heads have
    an axis of their own, if only for one of them.
    """
    everything = views.shape_of(hidden.view)[axis] == hidden.source.channels
    if hidden.part is None and everything and len(hidden.view) <= views.HIDDEN_AXES:
        return None
    whole = mixing.as_mixed(replace(hidden, factor=1.0))
    if whole is None or [atom.kind for atom in views.merged(whole.view[axis])] != ["lane"]:
        return None
    return mixing.chosen(whole, axis, places, op)
