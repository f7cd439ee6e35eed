"""Graphs for fewer tokens than a packed function has room for.

A function whose tokens are packed is launched for as many rows as it has room for, and blocks
without a token return at once. A graph for fewer tokens does not launch them: it has the same
kernels with fewer blocks along x. A call takes the smallest graph with room for its tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

RowBlocks = Sequence[int]
"""How a kernel's blocks along x share its rows: units of work per token, units that some blocks
share, and how many blocks those are (`ibert_tvm.schedules.row_guard.BLOCKS`)."""


def blocks_in_use(rows: RowBlocks | None, tokens: int, most: int) -> int:
    """Blocks along x that have something to do.

    Parameters
    ----------
    rows
        None where all have.
    tokens
        Tokens in use, at least 1.
    most
        Blocks along x for as many as there may be.
    """
    if rows is None:
        return most
    units, shared, blocks = rows
    return min(most, -(-tokens * units // shared) * blocks)


def token_buckets(most: int, rows: Iterable[RowBlocks]) -> tuple[int, ...]:
    """Numbers of tokens that graphs are made for.

    Parameters
    ----------
    most
        Tokens that there is room for.
    rows
        Of the kernels.

    Returns
    -------
    tuple of int
        Ascending; the last is `most`, and each is about half of the next one: whole tiles of the
        kernel with the most rows in a tile.
    """
    tile = max((-(-shared // units) for units, shared, _ in rows), default=most)
    buckets = [most]
    while (half := -(-buckets[-1] // (2 * tile)) * tile) < buckets[-1]:
        buckets.append(half)
    return tuple(reversed(buckets))


def tokens_in_use(mask: np.ndarray, kept: Sequence[int]) -> int:
    """Tokens that a packed function computes.

    Parameters
    ----------
    mask
        Attention mask, [batch, length].
    kept
        Positions whose tokens are computed whatever it says.
    """
    inside = [position for position in kept if position < mask.shape[1]]
    masked = mask.shape[0] * len(inside) - int(np.count_nonzero(mask[:, inside]))
    return int(np.count_nonzero(mask)) + masked
