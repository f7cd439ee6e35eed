"""Heads of queries, keys and values: which axes of a hidden tensor enumerate them."""

from __future__ import annotations

from collections.abc import Sequence

from . import views
from .builder import Builder
from .mismatch import Mismatch
from .values import Hidden
from .views import Axis


def heads_of(
    c: Builder, hidden: Hidden, batch: Sequence[Axis], channels: Axis, what: str
) -> tuple[int, int]:
    """Return the number of heads, and how often each is repeated.

    Parameters
    ----------
    c
        The function under construction.
    hidden
        Queries, keys or values.
    batch
        Axes of it that enumerate batch, head and repetition, in this order.
    channels
        That of the channels of a head.
    what
        What it is, for messages.

    Returns
    -------
    count, repeated : int
        Heads, and how often each is.

    Raises
    ------
    Mismatch
        If the axes enumerate anything else.
    """
    outer = views.flatten(batch)
    heads = outer[len(c.rows) :]
    own = tuple(atom for atom in heads if atom.kind == "channel")
    repeats = tuple(atom for atom in heads if atom.kind == "repeat")
    if outer[: len(c.rows)] != c.rows or len(own) + len(repeats) < len(heads):
        raise Mismatch(
            f"{what} are laid out as {views.describe(hidden.view)}, not batch, heads, "
            "sequence and channels of one head"
        )
    if heads != (*own, *repeats):
        raise Mismatch(
            f"{what} are repeated as {views.describe(hidden.view)}; heads that share keys have to "
            "be neighbours"
        )
    if views.merged((*own, *channels)) != views.channel_axis(hidden.source.channels):
        raise Mismatch(f"the heads of {what} are not contiguous channels of {hidden.source.name}")
    (count, repeated) = (views.shape_of((atoms,))[0] for atoms in (own, repeats))
    return count, repeated
