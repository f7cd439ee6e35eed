"""Decisions as a database stores them: by name, without saying whose they are."""

from __future__ import annotations

from collections.abc import Mapping

from .. import tiles
from ..cuda import attention_tile, gemm_tile
from ..tiles import Tile, value_types

_TILES: tuple[type[Tile], ...] = (
    tiles.LinearTile,
    tiles.AttentionTile,
    gemm_tile.GemmTile,
    attention_tile.AttentionTile,
)
"""All decisions that there are, on processors and on GPUs; no two have the same names."""


def tile_from_json(document: Mapping[str, object]) -> Tile:
    """Read decisions that were stored.

    Parameters
    ----------
    document
        Whole numbers and truth values by name.

    Raises
    ------
    ValueError
        If no rule takes such decisions.
    """
    for tile in _TILES if isinstance(document, Mapping) else ():
        if {name: type(value) for name, value in document.items()} == value_types(tile):
            return tile(**document)
    names = " or ".join(", ".join(value_types(tile)) for tile in _TILES)
    raise ValueError(f"the decisions on a kernel are whole numbers {names}")
