"""The vocabulary: a trie of bytes whose shape takes two bits a node (LOUDS).

Nodes are numbered breadth first, so that children follow one another, and for each node in turn
there are as many ones as it has children, and a zero (Jacobson, *Space-efficient static trees and
graphs*, 1989). The children of a node are found by counting zeros, from a sampled place on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .tables import Array, bits_of

SAMPLED = 32
"""Nodes between two that have their place stored."""


@dataclass(frozen=True)
class Trie:
    """Keys with numbers, as arrays; and the node of every beginning of a key."""

    arrays: tuple[Array, ...]
    numbering: Mapping[bytes, int]

    @classmethod
    def of(cls, name: str, numbers: Mapping[bytes, int]) -> Trie:
        """Build it; a key of no bytes is never looked for, and left out."""
        beginnings = {key[:length] for key in numbers for length in range(len(key) + 1)} | {b""}
        nodes = sorted(beginnings, key=lambda node: (len(node), node))
        numbering = {node: number for number, node in enumerate(nodes)}
        degrees = [0] * len(nodes)
        for node in nodes[1:]:
            degrees[numbering[node[:-1]]] += 1
        terminal = [node in numbers and node != b"" for node in nodes]
        shape: list[bool] = []
        places: list[int] = []
        ranks: list[int] = []
        for number, degree in enumerate(degrees):
            if number % SAMPLED == 0:
                places.append(len(shape))
                ranks.append(sum(terminal[number - SAMPLED : number]) + ranks[-1] if ranks else 0)
            shape += [True] * degree + [False]
        labels = [node[-1] if node else 0 for node in nodes]
        values = [numbers[node] for node, ends in zip(nodes, terminal, strict=True) if ends]
        arrays = (
            Array(f"{name}_labels", labels),
            Array(f"{name}_shape", bits_of(shape)),
            Array(f"{name}_places", places),
            Array(f"{name}_ends", bits_of(terminal)),
            Array(f"{name}_ranks", ranks),
            Array(f"{name}_values", values),
        )
        return cls(arrays, numbering)

    def find(self, key: bytes) -> int | None:
        """Node of a key or a beginning of one."""
        return self.numbering.get(key)
