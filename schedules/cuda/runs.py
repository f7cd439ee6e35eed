"""Runs of neighbouring channels: how the entries of a thread get into registers, and to memory.

A thread takes `width` channels that lie next to each other, and maybe several such runs. Whatever
its expressions read is one of three things: the same for all channels of a run (a plain load),
channels that lie next to each other (loaded by accesses as wide as their place in memory allows,
16 bytes at most), or entries here and there (a load for each). Results are numbers of 32 bits in
registers, which go to memory as the narrower type that they fit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from copy import copy

import tvm_ffi
from tvm import ir, sym, tirx

from ..nodes import nodes_of, substituted
from ..stages import SATURATE, EarlyLoad, Evaluation, Leaf, StageDefinition, StageGraph, narrows
from .statements import address, call, guarded, registers, serial, unrolled

_WIDEST_ACCESS = 16
_MOST_UNROLLED = 16
_NARROW = ("int8", "uint8", "int16")
_BOUNDS = {"int8": (-128, 127), "uint8": (0, 255)}


class RunOfChannels:
    """Channels of one thread.

    Parameters
    ----------
    width
        Channels that lie next to each other.
    first
        Takes `step`; the first of the channels of a run.
    steps
        How many runs the thread has.
    extents
        How far the variables of `first` run.
    inside
        Takes `step`; whether that run exists. None where all do.

    Attributes
    ----------
    lane, step
        Variables that count the channels of a run, and the runs of the thread.
    analyzer
        Knows how far the variables run.
    variables
        All that are defined before anything is computed.
    """

    def __init__(
        self,
        width: int,
        first: Callable[[tirx.Var], tirx.Expr],
        steps: int,
        extents: Mapping[tirx.Var, int],
        inside: Callable[[tirx.Var], tirx.Expr] | None = None,
    ) -> None:
        self.width, self.steps = width, steps
        self.lane, self.step = tirx.Var("lane", "int32"), tirx.Var("step", "int32")
        self.first = first(self.step)
        self.inside = None if inside is None else inside(self.step)
        self.variables = (*extents, self.lane, self.step)
        self.analyzer = sym.Analyzer()
        for var, extent in zip(self.variables, (*extents.values(), width, steps), strict=True):
            self.analyzer.bind(var, ir.Range(0, extent))

    def without(self, variable: tirx.Var) -> RunOfChannels:
        """The same channels, for what can be computed before a variable is known."""
        run = copy(self)
        run.variables = tuple(var for var in self.variables if not var.same_as(variable))
        return run

    @property
    def channel(self) -> tirx.Expr:
        """The channel that `lane` and `step` count."""
        return self.first + self.lane

    def knows(self, expressions: Sequence[tirx.Expr]) -> bool:
        """Whether expressions can be computed before all others: no stage's value is in them."""
        return all(
            isinstance(var.ty, tirx.BufferType) or any(var.same_as(one) for one in self.variables)
            for expr in expressions
            for var in nodes_of(expr, ir.Var)
        )

    def each_step(self, body: tirx.Stmt) -> tirx.Stmt:
        """Do something for every run of the thread."""
        loop = unrolled if self.steps <= _MOST_UNROLLED else serial
        return loop(self.step, self.steps, guarded(self.inside, body))

    def each_lane(self, body: tirx.Stmt) -> tirx.Stmt:
        """Do something for every channel of a run."""
        return unrolled(self.lane, self.width, body)


class Loads:
    """What is read for the channels of a thread.

    Parameters
    ----------
    run
        The channels.
    kept
        Whether the entries of all runs stay in registers, or only those of one at a time.

    Attributes
    ----------
    declarations
        Statements that must come first.
    copies
        Statements that load the run that `step` counts.
    """

    def __init__(self, run: RunOfChannels, kept: bool) -> None:
        self.run = run
        self.kept = kept
        self.declarations: list[tirx.Stmt] = []
        self.copies: list[tirx.Stmt] = []
        self._held: list[tuple[tirx.Var, tirx.Expr, tirx.Var]] = []

    def holds(self, buffer: tirx.Var) -> bool:
        """Whether a run of a buffer is in registers."""
        return any(known.same_as(buffer) for known, *_ in self._held)

    def leaf(self, buffer: tirx.Var) -> Leaf:
        """How expressions read a parameter."""
        return EarlyLoad(lambda indices: self._read(buffer, indices))

    def leaves(self, graph: StageGraph) -> dict[tirx.Var, Leaf]:
        """How expressions read all parameters of a kernel."""
        return {buffer: self.leaf(buffer) for buffer in graph.parameters}

    def place(self, lane: tirx.Expr) -> tirx.Expr:
        """Where an array of registers holds the entry of a lane."""
        return self.run.step * self.run.width + lane if self.kept else lane

    def _read(self, buffer: tirx.Var, indices: Sequence[tirx.Expr]) -> tirx.Expr:
        run = self.run
        if not run.knows(indices):
            return tirx.BufferLoad(buffer, list(indices))
        offset = flat_offset(buffer, indices)
        first = _with_lane(offset, run.lane, 0)
        distance = run.analyzer.simplify(offset - first)
        first = run.analyzer.simplify(first)
        if run.width == 1 or tvm_ffi.structural_equal(distance, run.lane):
            return tirx.BufferLoad(self._hold(buffer, indices, first), [self.place(run.lane)])
        return tirx.BufferLoad(buffer, list(indices))

    def _hold(self, buffer: tirx.Var, indices: Sequence[tirx.Expr], first: tirx.Expr) -> tirx.Var:
        """Registers with a run of a buffer that begins at offset `first`."""
        for known, place, held in self._held:
            if known.same_as(buffer) and tvm_ffi.structural_equal(place, first):
                return held
        run = self.run
        dtype = str(buffer.ty.dtype)
        held = registers(f"{buffer.name}_run", run.width * (run.steps if self.kept else 1), dtype)
        self._held.append((buffer, first, held))
        self.declarations.append(tirx.AllocBuffer(held))
        size = itemsize(dtype)
        entries = access_width(run.analyzer, first, run.width, size)
        for start in range(0, run.width, entries):
            to = address(held, self.place(tirx.const(start, "int32")))
            at = address(buffer, *(_with_lane(index, run.lane, start) for index in indices))
            self.copies.append(tirx.Evaluate(call(f"ibert::copy_bytes<{entries * size}>", to, at)))
        return held


def itemsize(dtype: str) -> int:
    """Bytes of a number."""
    return int(dtype.lstrip("uint")) // 8


def flat_offset(buffer: tirx.Var, indices: Sequence[tirx.Expr]) -> tirx.Expr:
    """Entries before one in memory."""
    offset: tirx.Expr = tirx.const(0, "int32")
    for size, index in zip(buffer.ty.shape, indices, strict=True):
        offset = offset * int(size) + index.astype("int32")
    return offset


def access_width(analyzer: sym.Analyzer, offset: tirx.Expr, count: int, size: int) -> int:
    """Entries that one access takes: as many as are aligned at an offset, and divide `count`.

    Parameters
    ----------
    analyzer
        Knows the variables of the offset.
    offset
        Of the first entry, in entries.
    count
        Entries that lie next to each other.
    size
        Bytes of one.

    Returns
    -------
    int
        A power of two.
    """
    known = analyzer.modular_set(offset)
    aligned = math.gcd(int(known.coeff), int(known.base), _WIDEST_ACCESS)
    entries = _WIDEST_ACCESS // size
    while entries > 1 and (aligned % entries or count % entries):
        entries //= 2
    return max(entries, 1)


def _with_lane(expr: tirx.Expr, lane: tirx.Var, value: int) -> tirx.Expr:
    return substituted(expr, {lane: tirx.const(value, "int32")})


def unpacked(value: tirx.Expr) -> tirx.Expr:
    """Number that an expression narrows at the end: emission proved that it fits."""
    if isinstance(value, tirx.Cast) and narrows(value):
        return value.value
    return value


def unsaturated(value: tirx.Expr, dtype: str) -> tirx.Expr:
    """Leave out the last clamps of a result where the store that packs it saturates anyway.

    Parameters
    ----------
    value
        int32, of an entry that is stored by ``ibert::store_packed`` or ``ibert::pack4_saturated``.
    dtype
        Type that it is stored as.

    Returns
    -------
    tvm.tirx.Expr
        Saturated to `dtype` it is the same number.
    """
    if dtype not in _BOUNDS:
        return value
    low, high = _BOUNDS[dtype]
    if isinstance(value, tirx.Max | tirx.Min) and isinstance(value.b, tirx.IntImm):
        inner, bound = unsaturated(value.a, dtype), int(value.b)
        if isinstance(value, tirx.Max):
            return inner if bound <= low else tirx.max(inner, value.b)
        return inner if bound >= high else tirx.min(inner, value.b)
    if getattr(getattr(value, "op", None), "name", "") == SATURATE:
        half = 1 << (int(value.args[1]) - 1)
        return value.args[0] if -half <= low and high < half else value
    return value


class Store:
    """One output of a thread's channels.

    Parameters
    ----------
    run
        The channels.
    buffer
        Where they go, [..., channels].
    first
        Indices of the first channel of a run.

    Attributes
    ----------
    declaration
        Statement that must come first.
    write
        Statement that stores a run, behind `put` of all its lanes.
    """

    def __init__(self, run: RunOfChannels, buffer: tirx.Var, first: Sequence[tirx.Expr]) -> None:
        dtype = str(buffer.ty.dtype)
        size = itemsize(dtype)
        self._run = run
        self.dtype = "int32" if dtype in _NARROW else dtype
        self._held = registers(f"{buffer.name}_run", run.width, self.dtype)
        self.declaration = tirx.AllocBuffer(self._held)
        offset = flat_offset(buffer, first)
        entries = access_width(run.analyzer, offset, run.width, size)
        writes = []
        for start in range(0, run.width, entries):
            to = address(buffer, *first[:-1], first[-1] + start)
            held = address(self._held, start)
            bytes_ = entries * size
            if dtype in _NARROW:
                name = f"ibert::store_packed<{dtype}_t, {bytes_}>"
            else:
                name = f"ibert::copy_bytes<{bytes_}>"
            writes.append(tirx.Evaluate(call(name, to, held)))
        self.write = tirx.SeqStmt(writes) if len(writes) > 1 else writes[0]

    def put(self, value: tirx.Expr) -> tirx.Stmt:
        """Keep the entry of a lane until the run is stored."""
        return tirx.BufferStore(self._held, value.astype(self.dtype), [self._run.lane])


class Results:
    """All outputs of a thread's channels.

    Parameters
    ----------
    evaluation
        Where entries are computed; it must be new.
    run
        The channels.
    row
        Indices of the row, without that of the channel.
    results
        Stages that write outputs [..., channels], in program order.

    Attributes
    ----------
    declarations
        Statements that must come first.
    entries
        Statements that compute the results of a run, and store them.
    """

    def __init__(
        self,
        evaluation: Evaluation,
        run: RunOfChannels,
        row: Sequence[tirx.Expr],
        results: Sequence[StageDefinition],
    ) -> None:
        puts, writes, declarations = [], [], []
        for stage in results:
            store = Store(run, stage.buffer, [*row, run.first])
            indices = [*row, run.channel]
            value = evaluation.value(stage, indices)
            if evaluation.graph.readers(stage.buffer):
                # What other results are made of needs its bounds.
                value = unpacked(evaluation.define(stage.buffer, indices, value))
            else:
                value = unsaturated(unpacked(value), str(stage.buffer.ty.dtype))
            declarations.append(store.declaration)
            puts.append(store.put(value))
            writes.append(store.write)
        self.declarations = declarations
        self.entries = [run.each_lane(evaluation.before(*puts)), *writes]
