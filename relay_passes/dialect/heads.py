"""Heads: runs of channels of one width, and what operators on them ask of their operands."""

from __future__ import annotations

from collections.abc import Iterator

from .record import Dims, Problem
from .types import Dim

UNBOUNDED = 2**31 - 1
"""A distance between tokens that no window limits."""
BY_CHANNEL_OF_ROW = "C or 1|H D"
"""Shape of a norm's constants: one per channel of a token, or per channel of a head, for each of
its H heads or for all of them."""


def heads_problems(num_heads: int, channels: int) -> Iterator[Problem]:
    """Whether heads divide the channels."""
    if num_heads < 1 or channels % num_heads:
        yield (
            f"{channels} channels do not divide by {num_heads} heads",
            "every head has the same number of channels",
            "give as many heads as the source model has",
        )


def window_problems(before: int, after: int) -> Iterator[Problem]:
    """Whether a query lies in its own window."""
    if min(before, after) < 0:
        yield (
            f"a window of {before} keys before and {after} after the query",
            "a query sees itself at least",
            "give distances of 0 and more",
        )


def attention_problems(num_heads: int, dims: Dims) -> Iterator[Problem]:
    """Whether queries (C channels) share keys and values (K), and a bias (H D or H P P) fits."""
    channels, shared = dims["C"], dims["K"]
    yield from heads_problems(num_heads, channels)
    heads, rest = divmod(shared, channels // num_heads)
    if heads < 1 or rest or num_heads % heads:
        yield (
            f"{shared} channels of keys and values for {num_heads} heads of "
            f"{channels // num_heads} channels",
            "keys have a head for each of the queries', or one for every so many of them",
            "give keys and values a number of heads that divides num_heads",
        )
    if "D" in dims or "P" in dims:
        extents = (dims["D"],) if "D" in dims else (dims["P"], dims["P"])
        yield from bias_problems(num_heads, dims.get("H", num_heads), extents, dims["s"])


def bias_problems(
    num_heads: int, rows: int, extents: tuple[int, ...], length: Dim
) -> Iterator[Problem]:
    """Whether a bias by distance (one extent) or by query and key (two) fits heads and tokens."""
    entries = extents[-1]
    positions, odd = (entries, True) if len(extents) == 2 else ((entries + 1) // 2, entries % 2)
    if rows != num_heads or not odd or _is_longer(length, positions):
        yield (
            f"a bias of {rows} rows of {' x '.join(map(str, extents))} entries for "
            f"{num_heads} heads and {length} tokens",
            "it has a row for each head, or one for all, and an entry for each distance from "
            "1 - positions to positions - 1, or for each pair of positions",
            "give the bias for sequences as long as the model takes",
        )


def distance_problems(distances: int, length: Dim) -> Iterator[Problem]:
    """Whether there is a vector for each distance in a sequence."""
    if not distances % 2 or _is_longer(length, (distances + 1) // 2):
        yield (
            f"vectors for {distances} distances and {length} tokens",
            "there is one for each distance from 1 - positions to positions - 1",
            "give vectors for sequences as long as the model takes",
        )


def _is_longer(length: Dim, positions: int) -> bool:
    return isinstance(length, int) and length > positions
