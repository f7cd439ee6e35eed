"""Kernels in pieces: the same kernel on fewer of its columns, with the weights of these alone.

Where weights are fetched while the model runs (`compile --external-weights fetch`), a kernel whose
weights are larger than the buffer runs several times, each time for a part of its columns. That is
the kernel with fewer iterations of one loop, called on addresses that move from piece to piece:

```
for n in range(64):                     for n in range(16):            # 4 pieces
    out[m * 128 + n * 2 + i] =    ->        out[m * 128 + n * 2 + i] =
        f(weight[n * 1024 + k])                 f(weight[n * 1024 + k])
kernel(weight, out)                     kernel(piece, out + 32 * number)
```

It is exact where an iteration and the one a piece later are the same code on moved addresses, and
nothing else depends on how many iterations there are. Both are proved for each kernel.

Tables of which a kernel reads the rows that another argument numbers, such as that of words, are
not read whole: the rows come one by one (`Rows`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tvm_ffi
from tvm import ir, sym, tirx

from ibert_tvm.common.errors import TargetError

from ..nodes import calls_of, changed, nodes_of, substituted
from .interface import item_size
from .model import KernelParameter

SECTOR = 512
"""Pieces begin at multiples of it in their file, and are multiples of it: sectors of cards."""

SMALL_BUFFER = 16 * 1024
"""Bytes of weights that are fetched at once where nothing else is said and kernels allow it."""


@dataclass(frozen=True)
class Rows:
    """How a kernel reads a table.

    Attributes
    ----------
    numbers
        Number of the argument that holds the numbers of its rows, int32.
    count
        Rows of the table: numbers beyond them count as the nearest.
    entries
        Of a row.
    """

    numbers: int
    count: int
    entries: int


@dataclass(frozen=True)
class Cut:
    """How a kernel is called.

    Attributes
    ----------
    pieces
        Calls that do its work.
    steps
        Entries by which each argument moves from call to call; 0 for what every call gets whole.
    rows
        By argument: tables that are read by rows.
    """

    pieces: int
    steps: tuple[int, ...]
    rows: Mapping[int, Rows]

    def weight_bytes(self, index: int, parameter: KernelParameter) -> int:
        """Bytes that a call needs of an argument that is a weight."""
        return (self.steps[index] or parameter.elements) * item_size(parameter.dtype)

    def parameters(self, whole: Sequence[KernelParameter]) -> tuple[KernelParameter, ...]:
        """Arguments of the kernel, with the alignment that they have in every piece.

        Weights are laid out anew for each piece and keep theirs.
        """
        return tuple(
            replace(one, alignment=math.gcd(one.alignment, step * item_size(one.dtype)))
            if step
            else one
            for one, step in zip(whole, self.steps, strict=True)
        )


@dataclass(frozen=True)
class TableFetch:
    """A table of which a call fetches the rows that it reads.

    Attributes
    ----------
    argument, numbers
        Which arguments of the kernel are the table, and the numbers of the rows.
    most
        How many numbers there are.
    count, row_bytes
        Rows of the table, and the size of each.
    offset
        Of the table in the file of weights.
    """

    argument: int
    numbers: int
    most: int
    count: int
    row_bytes: int
    offset: int


@dataclass(frozen=True)
class CallFetch:
    """What a call of a kernel fetches.

    Attributes
    ----------
    pieces
        Calls that it becomes.
    steps
        Entries by which each argument moves from one to the next.
    offset
        Of the first piece in the file of weights; the others follow.
    nbytes
        Of a piece; 0 if it has no weights but rows of tables.
    places
        Offset in a piece of each argument that is in it.
    tables
        Tables that are fetched by rows, before the first piece is used.
    """

    pieces: int
    steps: tuple[int, ...]
    offset: int
    nbytes: int
    places: Mapping[int, int]
    tables: tuple[TableFetch, ...]


def cut_kernel(
    function: tirx.PrimFunc,
    parameters: Sequence[KernelParameter],
    weights: Collection[int],
    limit: int | None,
    alignment: int,
) -> tuple[tirx.PrimFunc, Cut]:
    """Let a kernel need no more of its weights at a time than a buffer holds.

    Parameters
    ----------
    function
        With buffers of one dimension and without bindings: behind ``FlattenBuffer``.
    parameters
        Its arguments.
    weights
        Numbers of those that are fetched.
    limit
        Bytes of the buffer; if None, `SMALL_BUFFER` or as little more as there must be.
    alignment
        Of each weight in it, in bytes.

    Returns
    -------
    function, cut
        The kernel of one piece, and how it is called.

    Raises
    ------
    TargetError
        If it cannot be cut so far.
    """
    wanted = SMALL_BUFFER if limit is None else limit
    kernel = _Kernel(function, parameters, frozenset(weights), alignment, wanted)
    whole = Cut(1, (0,) * len(parameters), kernel.rows)
    least = kernel.nbytes(whole)
    if least <= wanted:
        return function, whole
    best = (least, function, whole)
    for loop in kernel.loops():
        extent = int(loop.extent)
        divisors = [pieces for pieces in range(2, extent + 1) if extent % pieces == 0]
        enough = [pieces for pieces in divisors if least <= wanted * pieces]
        for pieces in (*enough, *reversed(divisors)):
            cut = kernel.cut(loop, pieces)
            if cut is None:
                continue
            if kernel.nbytes(cut) <= wanted:
                return kernel.piece(loop, pieces), cut
            if pieces not in enough or pieces == divisors[-1]:
                best = min(best, (kernel.nbytes(cut), kernel.piece(loop, pieces), cut), key=_first)
                break
    smallest, function, cut = best
    if limit is None:
        return function, cut
    layer = (function.attrs or {}).get("ibert.layer", "a kernel")
    raise TargetError(
        what="the buffer for weights that are fetched is too small",
        where=f"layer {layer}",
        why=f"a call of its kernel needs at least {smallest} bytes of weights, more than {limit}",
        todo=f"give a larger one (--fetch-buffer {smallest}), or none",
    )


def _first(row: tuple[int, tirx.PrimFunc, Cut]) -> int:
    return row[0]


class _Kernel:
    """What is asked of a kernel: where it reads and writes, and what a loop does to that."""

    def __init__(
        self,
        function: tirx.PrimFunc,
        parameters: Sequence[KernelParameter],
        weights: frozenset[int],
        alignment: int,
        limit: int,
    ) -> None:
        self.limit = limit
        self.function = function
        self.parameters = parameters
        self.weights = weights
        self.alignment = alignment
        self.analyzer = sym.Analyzer()
        # Views are other names of the same memory.
        self.root = {var: var for var in function.params}
        for view in nodes_of(function.body, tirx.DeclBuffer):
            (source,) = nodes_of(view.data, ir.Var)
            self.root[view.buffer] = self.root.get(source, source)
        self.number = {var: index for index, var in enumerate(function.params)}
        self.accesses = Counter(self.memory(one) for one in _accesses(function.body))
        self.rows = self._tables()

    def memory(self, access: ir.TensorLoad | tirx.BufferStore) -> tirx.Var:
        """The buffer that an access is to, by its first name."""
        var = access.buffer if isinstance(access, tirx.BufferStore) else access.source
        return self.root.get(var, var)

    def parameter(self, access: ir.TensorLoad | tirx.BufferStore) -> int | None:
        """Number of the argument that an access is to."""
        return self.number.get(self.memory(access))

    def nbytes(self, cut: Cut) -> int:
        """Bytes of weights that a call needs, but for rows of tables."""
        parts = (
            aligned(cut.weight_bytes(index, self.parameters[index]), self.alignment)
            for index in self.weights
            if index not in cut.rows
        )
        return aligned(sum(parts), SECTOR)

    def loops(self) -> list[tirx.For]:
        """Loops that weights are read in, outer ones first."""
        return [
            loop
            for loop in nodes_of(self.function.body, tirx.For, order="pre")
            if loop.kind == tirx.ForKind.SERIAL
            and isinstance(loop.extent, tirx.IntImm)
            and isinstance(loop.min, tirx.IntImm)
            and int(loop.min) == 0
            and any(self.parameter(one) in self.weights for one in _accesses(loop.body))
        ]

    def piece(self, loop: tirx.For, pieces: int) -> tirx.PrimFunc:
        """The kernel with fewer iterations of a loop."""
        shorter = changed(loop, extent=tirx.IntImm("int32", int(loop.extent) // pieces))

        def replaced(one: tirx.For) -> tirx.For:
            return shorter if one.loop_var.same_as(loop.loop_var) else one

        body = tvm_ffi.structural_map(self.function.body, (tirx.For, replaced))
        return self.function.with_body(body)

    def cut(self, loop: tirx.For, pieces: int) -> Cut | None:
        """How to cut a loop in so many pieces; None if it is not proved that one can."""
        extent = int(loop.extent) // pieces
        steps = self._steps(loop, extent)
        if steps is None or not self._is_alone(loop, steps):
            return None
        for index in self.weights:
            step = steps[index]
            if index in self.rows or not step:
                continue
            if step * pieces != self.parameters[index].elements:
                return None
            read = [one.indices[0] for one in _accesses(loop.body) if self.parameter(one) == index]
            if not self._within(read, step, {loop.loop_var: extent}):
                return None
        if any(steps[index] or steps[rows.numbers] for index, rows in self.rows.items()):
            return None
        return Cut(pieces, steps, self.rows)

    def _steps(self, loop: tirx.For, extent: int) -> tuple[int, ...] | None:
        """Entries by which arguments move in so many iterations; None if that is not all."""
        body, var = loop.body, loop.loop_var
        later = substituted(body, {var: var + extent})
        steps: dict[int, int] = {}
        for now, then in zip(_accesses(body), _accesses(later), strict=True):
            index = self.parameter(now)
            if index is None:
                continue
            moved = self.analyzer.simplify(then.indices[0] - now.indices[0])
            if not isinstance(moved, tirx.IntImm) or steps.setdefault(index, int(moved)) != moved:
                return None
        if not tvm_ffi.structural_equal(self._moved(body, {}), self._moved(later, steps)):
            return None
        return tuple(steps.get(index, 0) for index in range(len(self.parameters)))

    def _moved(self, tree: tirx.Stmt, steps: Mapping[int, int]) -> tirx.Stmt:
        """A statement with arguments that begin so many entries later, in a form to compare."""

        def place(access: ir.TensorLoad | tirx.BufferStore) -> list[tirx.Expr]:
            step = steps.get(-1 if (index := self.parameter(access)) is None else index, 0)
            return [self.analyzer.simplify(index - step) for index in access.indices]

        callbacks = [
            (ir.TensorLoad, lambda one: tirx.BufferLoad(one.source, place(one))),
            (tirx.BufferStore, lambda one: tirx.BufferStore(one.buffer, one.value, place(one))),
            ((tirx.FloorDiv, tirx.FloorMod), self.analyzer.simplify),
        ]
        return tvm_ffi.structural_map(tree, callbacks)

    def _is_alone(self, loop: tirx.For, steps: Sequence[int]) -> bool:
        """Whether nothing else in the kernel uses what the loop writes, or arguments that move.

        The iterations of a loop whose own memory nobody else has prepared prepare it themselves,
        all of them in the same way.
        """
        inside = Counter(self.memory(one) for one in _accesses(loop.body))
        written = {self.memory(one) for one in nodes_of(loop.body, tirx.BufferStore)}
        for call in calls_of(loop.body, "tirx.call_extern"):
            # Microkernels write what the last of their pointers points at.
            *_, last = (one for one in call.args if _accesses(one))
            written.add(self.memory(_accesses(last)[0]))
        moved = {var for var, index in self.number.items() if steps[index]}
        everywhere = {self.memory(one) for one in nodes_of(self.function.body, tirx.BufferStore)}
        results = everywhere & set(self.number)
        return all(self.accesses[var] == inside[var] for var in written | moved | results)

    def _within(
        self, places: Sequence[tirx.Expr], end: int, extents: Mapping[tirx.Var, int] | None = None
    ) -> bool:
        """Whether places are from 0 to an end; the loops of some variables may be shorter."""
        analyzer = sym.Analyzer()

        for one in nodes_of(self.function.body, tirx.For, order="pre"):
            count = analyzer.const_int_bound(one.extent).max_value
            analyzer.bind(one.loop_var, ir.Range(0, (extents or {}).get(one.loop_var, count)))
        bounds = [analyzer.const_int_bound(place) for place in places]
        return all(one.min_value >= 0 and one.max_value < end for one in bounds)

    def _tables(self) -> dict[int, Rows]:
        """Weights that are read by rows, where these take less memory than the tables."""
        found: dict[int, Rows] = {}
        for index in self.weights:
            rows = self._rows(index)
            if rows is not None:
                found[index] = rows
        tables: dict[int, list[int]] = {}
        for index, rows in found.items():
            tables.setdefault(rows.numbers, []).append(index)
        kept: dict[int, Rows] = {}
        for numbers, of_same in tables.items():
            most = self.parameters[numbers].elements
            inside = sum(
                self.memory(load).same_as(self.function.params[numbers])
                for access in _accesses(self.function.body)
                if self.parameter(access) in of_same
                for load in _accesses(access.indices[0])
            )
            alone = inside == self.accesses[self.function.params[numbers]]
            nbytes = sum(
                self.parameters[one].elements * item_size(self.parameters[one].dtype)
                for one in of_same
            )
            if alone and (nbytes > self.limit or found[of_same[0]].count > most):
                kept |= {one: found[one] for one in of_same}
        return kept

    def _rows(self, index: int) -> Rows | None:
        """How one weight is read by rows; None if it is not."""
        found: set[Rows] = set()
        row, elements = tirx.Var("row", "int32"), self.parameters[index].elements
        for access in _accesses(self.function.body):
            if self.parameter(access) != index:
                continue
            numbers = {self.parameter(one) for one in _accesses(access.indices[0])}
            number = numbers.pop() if len(numbers) == 1 else None
            if number is None or self.parameters[number].dtype != "int32":
                return None
            ends: set[int] = set()
            place = _unclamped(access.indices[0], row, ends)
            first, second = (substituted(place, {row: tirx.IntImm("int32", at)}) for at in (0, 1))
            length = self.analyzer.simplify(second - first)
            if not isinstance(length, tirx.IntImm) or int(length) < 1 or elements % int(length):
                return None
            rows = Rows(number, elements // int(length), int(length))
            if not ends <= {0, rows.count - 1} or not self._within([first], rows.entries):
                return None
            found.add(rows)
        return found.pop() if len(found) == 1 else None


def _unclamped(place: tirx.Expr, row: tirx.Var, ends: set[int]) -> tirx.Expr:
    """A place in which a number that is loaded, and kept between ends, is a variable."""

    def change(node: tirx.Expr) -> tirx.Expr:
        if isinstance(node, ir.TensorLoad):
            return row
        constants = [one for one in (node.a, node.b) if isinstance(one, tirx.IntImm)]
        if len(constants) != 1 or not (node.a.same_as(row) or node.b.same_as(row)):
            return node
        ends.add(int(constants[0]))
        return row

    return tvm_ffi.structural_map(place, ((ir.TensorLoad, tirx.Max, tirx.Min), change))


def aligned(nbytes: int, alignment: int) -> int:
    """Bytes up to the next multiple of an alignment."""
    return -(-nbytes // alignment) * alignment


def _accesses(tree: Any) -> list[Any]:
    """Loads and stores of a tree, in order; what an address is taken of counts as loaded."""
    return nodes_of(tree, ir.TensorLoad, tirx.BufferStore)
