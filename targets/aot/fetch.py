"""Weights that are fetched while the model runs: what each call fetches, and the file it is in.

The file holds pieces in the order in which kernels first need them, and tables of which rows are
fetched one by one. A piece is what one call of a kernel needs: its part of each weight, one behind
the other. It is fetched while the piece before it is used, so two buffers take turns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ibert_tvm.common.errors import TargetError

from .graph import Graph
from .interface import item_size
from .lower import LoweredKernel
from .pieces import SECTOR, CallFetch, TableFetch, aligned

_MOST_BYTES = 2**32 - SECTOR


@dataclass(frozen=True)
class _Part:
    """Entries of one weight, at a place in the file."""

    weight: int
    first: int
    entries: int
    offset: int


@dataclass
class Image:
    """The file of weights, as far as calls were planned.

    Attributes
    ----------
    alignment
        Of each weight in a piece.
    nbytes
        Its size.
    """

    alignment: int
    nbytes: int = 0
    _parts: list[_Part] = field(default_factory=list)
    _known: dict[object, int] = field(default_factory=dict)

    def plan(self, graph: Graph, kernels: Mapping[str, LoweredKernel]) -> dict[int, CallFetch]:
        """What the calls of a function fetch, by their numbers; the file grows by what is new.

        Raises
        ------
        TargetError
            If the file is larger than its offsets can say.
        """
        fetches = {}
        for step, call in enumerate(graph.calls):
            fetch = self._call(graph, step, kernels[call.kernel])
            if fetch is not None:
                fetches[step] = fetch
        if self.nbytes > _MOST_BYTES:
            raise TargetError(
                what="the weights cannot be fetched",
                where="external weights",
                why=f"their file has {self.nbytes} bytes, and offsets 32 bits",
                todo="take a smaller model",
            )
        return fetches

    def _call(self, graph: Graph, step: int, kernel: LoweredKernel) -> CallFetch | None:
        call, cut = graph.calls[step], kernel.cut
        assert cut is not None  # kernels were lowered for fetching
        values = (*call.reads, *call.writes)
        weights = {
            index: value - graph.num_inputs
            for index, value in enumerate(values)
            if graph.num_inputs <= value < graph.given
        }
        places, end, parts = {}, 0, []
        for index, weight in weights.items():
            if index in cut.rows:
                continue
            moved, whole = cut.steps[index], graph.values[values[index]]
            places[index] = end
            parts.append((weight, moved, moved or whole.elements, end))
            end += aligned((moved or whole.elements) * item_size(whole.dtype), self.alignment)
        nbytes = aligned(end, SECTOR)
        tables = tuple(
            TableFetch(
                index,
                rows.numbers,
                graph.values[values[rows.numbers]].elements,
                rows.count,
                rows.entries * item_size(graph.values[values[index]].dtype),
                self._table(weights[index], graph.values[values[index]].nbytes),
            )
            for index, rows in cut.rows.items()
            if index in weights
        )
        if not parts and not tables:
            return None
        offset = self._pieces(cut.pieces, parts, nbytes) if parts else 0
        return CallFetch(cut.pieces, cut.steps, offset, nbytes, places, tables)

    def _table(self, weight: int, nbytes: int) -> int:
        if (weight,) not in self._known:
            self._known[weight,] = self.nbytes
            self._parts.append(_Part(weight, 0, -1, self.nbytes))
            self.nbytes += aligned(nbytes, SECTOR)
        return self._known[weight,]

    def _pieces(self, count: int, parts: Sequence[tuple[int, int, int, int]], nbytes: int) -> int:
        key = (count, tuple(parts))
        if key not in self._known:
            self._known[key] = self.nbytes
            for number in range(count):
                self._parts.extend(
                    _Part(weight, number * moved, entries, self.nbytes + place)
                    for weight, moved, entries, place in parts
                )
                self.nbytes += nbytes
        return self._known[key]

    def content(self, parameters: Mapping[str, np.ndarray]) -> Iterator[bytes]:
        """The file, in pieces, from the arrays in the order of the program's parameters."""
        arrays = list(parameters.values())
        end = 0
        for part in self._parts:
            array = np.ascontiguousarray(arrays[part.weight]).reshape(-1)
            stop = None if part.entries < 0 else part.first + part.entries
            chosen = array[part.first : stop]
            little = chosen.astype(chosen.dtype.newbyteorder("<"), copy=False).tobytes()
            yield b"\0" * (part.offset - end)
            yield little
            end = part.offset + len(little)
        yield b"\0" * (self.nbytes - end)
