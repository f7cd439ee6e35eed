"""Tables of positions: one row per token, added to a hidden tensor."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ibert_tvm.relay_passes.canonical import build

from . import views
from .emitter import Emitter, layer_of
from .inputs import Ids, constant_array
from .values import (
    Embedded,
    FromInputs,
    Hidden,
    Mismatch,
    Prepended,
    Table,
    Weight,
)


def add_table(c: Emitter, x: Hidden, other: Weight | FromInputs, op: str) -> Hidden | None:
    """Add a table of one row per token; None if `other` is not one.

    Parameters
    ----------
    c : Emitter
        The function under construction.
    x : Hidden
        The other term.
    other : Weight or FromInputs
        Perhaps [tokens, channels], or [rows, columns, channels], after axes of extent 1.
    op : str
        The operator.

    Returns
    -------
    Hidden or None
        The sum.

    Raises
    ------
    Mismatch
        If it is a table for the exported length only.
    """
    array = constant_array(other) if isinstance(other, FromInputs) else other.array
    # Patches of images may still be in rows and columns.
    places = views.flatten(x.view[1:-1])
    if array is None or len(x.view) < 3 or not views.is_tokens(places):
        return None
    tokens = views.merged(places)[0]
    own = views.shape_of(x.view)[1:-1]
    if array.size != array.shape[-1] * tokens.extent or array.shape[-1 - len(own) : -1] != own:
        return None
    channels = x.source.channels
    if array.shape[-1] != channels:
        return None
    c.require_all_channels(x)
    array = np.asarray(array.reshape(tokens.extent, channels), np.float32)
    name = other.name if isinstance(other, Weight) else f"{x.source.name}.positions"
    if tokens.kind == "patch":
        source = x.source
        if isinstance(source, Prepended) and source.table is None and x.factor == 1.0:
            positions = Weight(name, array)
            return replace(x, source=replace(source, name=name, table=positions), ops=())
        operands = (c.emit(x).var, c.weight(name, array))
        label, ops = c.unique(name), (*x.ops, op)
        emitted = c.record(build.add_positions, label, channels, ops, *operands)
        return Hidden(emitted, x.view, layer=x.layer)
    table = other.table if isinstance(other, Weight) else None
    if table is None and c.revisit is not None and isinstance(other, Weight):
        table = Table(array, 0)  # as long as the sequence, so nothing is cut
    if table is None:
        raise Mismatch(
            f"{name} has one row per token of the exported length, and is not cut out of a longer "
            "table"
        )
    rows = Weight(name, table.array, layer=layer_of(name))
    ids = c.positions(Ids("absolute", value=table.offset, has_batch=False), f"{name}.position_ids")
    source = Embedded(name, channels, (), rows, ids)
    view = ((c.seq_len,), views.channel_axis(channels))
    return c.add(x, Hidden(source, view, missing=c.rows, layer=layer_of(name)), (op,))
