"""Tables of positions: one row per token, added to a hidden tensor."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from . import views
from .builder import Builder, layer_of
from .computed import Embedded, Prepended
from .inputs import Ids
from .mismatch import Mismatch
from .operands import Table
from .values import Emitted, Given, Hidden, Weight, add


def add_table(c: Builder, x: Hidden, other: Given, op: str) -> Hidden | None:
    """Add a table of one row per token; None if `other` is not one.

    Parameters
    ----------
    c
        The function under construction.
    x
        The other term.
    other
        Perhaps [tokens, channels], or [rows, columns, channels], after axes of extent 1.
    op
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
    array = other.fixed()
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
    x.require_all_channels()
    array = np.asarray(array.reshape(tokens.extent, channels), np.float32)
    weight = other if isinstance(other, Weight) else None
    name = f"{x.source.name}.positions" if weight is None else weight.name
    if tokens.kind == "patch":
        source = x.source
        if isinstance(source, Prepended) and source.table is None and x.factor == 1.0:
            positions = Weight(name, array)
            return replace(x, source=replace(source, name=name, table=positions), ops=())
        given = (channels, (*x.ops, op), x.emit(c), Weight(name, array))
        return Hidden(Emitted.call(c, "add_positions", name, *given), x.view, layer=x.layer)
    table = None if weight is None else weight.table
    if table is None and c.revisit is not None and weight is not None:
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
    return add(c, x, Hidden(source, view, missing=c.rows, layer=layer_of(name)), (op,))
