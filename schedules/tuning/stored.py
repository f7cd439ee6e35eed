"""Decisions as a database stores them: by name, without saying whose they are."""

from __future__ import annotations

from collections.abc import Mapping

from .. import tiles
from ..cuda import attention_tile, gemm_tile
from ..tiles import Tile, value_types

_KINDS: Mapping[str, tuple[type[Tile], ...]] = {
    "linear": (tiles.LinearTile, gemm_tile.GemmTile),
    "attention": (tiles.AttentionTile, attention_tile.AttentionTile),
}
"""Decisions by kind of kernel, on processors and on GPUs; other kinds have none."""


def tile_from_json(kind: str, document: Mapping[str, object]) -> Tile:
    """Read decisions that were stored.

    Parameters
    ----------
    kind
        Kind of kernel.
    document
        Whole numbers and truth values by name.

    Raises
    ------
    ValueError
        If the kind has no decisions, or they are none of its.
    """
    if kind not in _KINDS:
        raise ValueError(f"kernels of kind {kind!r} are not tuned")
    for tile in _KINDS[kind] if isinstance(document, Mapping) else ():
        if {name: type(value) for name, value in document.items()} == value_types(tile):
            return tile(**document)
    names = " or ".join(", ".join(value_types(tile)) for tile in _KINDS[kind])
    raise ValueError(f"the decisions of a {kind} kernel are whole numbers {names}")
