"""The stages of a kernel: what they compute and read, which is all that schedules know of them.

Emission writes a kernel as a chain of loops, one block per stage, each traced from the integer
specification. Rules ask what a stage reduces, which axes it has and what it reads, never for its
name. On a GPU a thread computes an entry of the last stage from what lies in registers or
in shared memory; this module gives the expression for it, producers inlined, so that no rule of a
GPU ever spells arithmetic of the specification.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import ir, s_tir, tirx

from .errors import ScheduleError
from .nodes import calls_of, nodes_of, substituted

Leaf = Callable[[Sequence[tirx.Expr]], tirx.Expr]
"""``leaf(indices)``: how a skeleton reads an entry that it has computed or loaded before."""

OPAQUE = "ibert::opaque"
"""Device function that gives its argument back, of which TVM knows nothing (primitives.cuh)."""

# Known by name: this package does not import the one that defines the operator.
SATURATE = "tirx.ibert_saturate"
CHOICE = "prim.if_then_else"


@dataclass(frozen=True)
class EarlyLoad:
    """A leaf that loads from memory before anything is computed.

    An entry under a condition is not read through it: where the condition does not hold, its place
    may lie outside of the buffer.

    Attributes
    ----------
    read
        The leaf.
    """

    read: Leaf

    def __call__(self, indices: Sequence[tirx.Expr]) -> tirx.Expr:
        """Read an entry."""
        return self.read(indices)


@dataclass(frozen=True)
class StageDefinition:
    """One block of an emitted kernel.

    Attributes
    ----------
    name
        Block name, for example ``"biased"``.
    buffer
        What it writes.
    axes, extents
        Its spatial variables, and how far each runs.
    reduced, reduced_extents
        Variables that it reduces over, and how far each runs; empty for an elementwise stage.
    indices
        Where it writes, in terms of `axes`.
    value
        Entry that it writes; of a reduction, the term that is combined.
    combine
        ``"sum"`` or ``"max"`` for a reduction, else ``""``.
    initial
        What a reduction starts from; None for an elementwise stage.
    """

    name: str
    buffer: tirx.Buffer
    axes: tuple[tirx.Var, ...]
    extents: tuple[int, ...]
    reduced: tuple[tirx.Var, ...]
    reduced_extents: tuple[int, ...]
    indices: tuple[tirx.Expr, ...]
    value: tirx.Expr
    combine: str = ""
    initial: tirx.Expr | None = None


class NotElementwise(ScheduleError):
    """A kernel, or an entry of it, is not made of stages; the message says why."""


class StageGraph:
    """The blocks of an emitted kernel by name, and by the buffer that each writes.

    Attributes
    ----------
    stages
        By block name, in program order.
    parameters
        Buffers that the kernel takes and does not write, in the order of its arguments.
    outputs
        Buffers that it writes for its caller, likewise.

    Raises
    ------
    NotElementwise
        If it is made of other statements than one block per stage.
    """

    def __init__(self, func: tirx.PrimFunc) -> None:
        root = func.body.block
        body = root.body
        statements = list(body) if isinstance(body, tirx.SeqStmt) else [body]
        self.stages: dict[str, StageDefinition] = {}
        self._by_buffer: dict[tirx.Var, StageDefinition] = {}
        for statement in statements:
            stage = _definition(statement)
            self.stages[stage.name] = stage
            self._by_buffer[stage.buffer] = stage
        self.parameters = [var for var in func.params if var not in self._by_buffer]
        self.outputs = [var for var in func.params if var in self._by_buffer]

    def producer(self, buffer: tirx.Var) -> StageDefinition | None:
        """Stage that writes a buffer; None for a parameter."""
        return self._by_buffer.get(buffer)

    def reads(self, stage: StageDefinition) -> set[str]:
        """Names of the stages that a stage reads."""
        producers = (self.producer(load.source) for load in loads_of(stage.value))
        return {producer.name for producer in producers if producer is not None}

    def sources(self, names: Iterable[str]) -> set[str]:
        """Names of all stages that some stages depend on."""
        found: set[str] = set()
        todo = list(names)
        while todo:
            new = self.reads(self.stages[todo.pop()]) - found
            found |= new
            todo += new
        return found

    def readers(self, buffer: tirx.Var) -> list[StageDefinition]:
        """Stages that read a buffer."""
        return [
            stage
            for stage in self.stages.values()
            if any(load.source.same_as(buffer) for load in loads_of(stage.value))
        ]

    def evaluate(self, leaves: Mapping[tirx.Var, Leaf] | None = None) -> Evaluation:
        """Start to compute entries of stages.

        Parameters
        ----------
        leaves
            Buffers (of stages or parameters) that are read in another way than by a load.
        """
        return Evaluation(self, dict(leaves or {}))


class Evaluation:
    """Entries of stages, computed by one thread at one place of the code.

    Attributes
    ----------
    graph
        The kernel.
    bindings
        ``Bind`` statements that must come before whatever uses the entries: one per stage and
        let-binding, so that nothing is computed twice and no expression grows deep, which
        TVM's analyses would take exponential time for.
    """

    def __init__(self, graph: StageGraph, leaves: dict[tirx.Var, Leaf]) -> None:
        self.graph = graph
        self._leaves = leaves
        self._known: dict[tirx.Var, list[tuple[list[tirx.Expr], tirx.Expr]]] = {}
        self._looked_up: dict[tirx.Var, tirx.Expr] = {}
        self.bindings: list[tirx.Stmt] = []

    def entry(self, buffer: tirx.Var, indices: Sequence[tirx.Expr]) -> tirx.Expr:
        """Entry of a buffer: of a leaf, by its producer, or loaded if it is a parameter.

        Parameters
        ----------
        buffer
            What a stage writes, or a parameter.
        indices
            Which entry.

        Returns
        -------
        tvm.tirx.Expr
            Valid behind `bindings`.

        Raises
        ------
        NotElementwise
            If the entry needs a reduction that is no leaf.
        """
        leaf = self._leaves.get(buffer)
        if isinstance(leaf, EarlyLoad):  # in front of the bindings
            return leaf([substituted(index, self._looked_up) for index in indices])
        if leaf is not None:
            return leaf(list(indices))
        stage = self.graph.producer(buffer)
        if stage is None:
            return tirx.BufferLoad(buffer, list(indices))
        for known, value in self._known.get(buffer, []):
            if all(map(tvm_ffi.structural_equal, known, indices)):
                return value
        return self.define(buffer, indices, self.value(stage, indices))

    def value(
        self,
        stage: StageDefinition,
        indices: Sequence[tirx.Expr],
        reduced: Sequence[tirx.Expr] = (),
    ) -> tirx.Expr:
        """Value of a stage at given places: of a reduction, the term for given `reduced`.

        Parameters
        ----------
        stage
            One of the graph's.
        indices
            Entry that it writes.
        reduced
            Values of the variables that it reduces over.

        Returns
        -------
        tvm.tirx.Expr
            Valid behind `bindings`.
        """
        if len(reduced) != len(stage.reduced):
            raise NotElementwise(f"stage {stage.name!r} is a reduction")
        places = dict(zip(stage.axes, _axis_values(stage, indices), strict=True))
        places.update(zip(stage.reduced, reduced, strict=True))
        return self.expression(stage.value, places)

    def expression(
        self, expr: tirx.Expr, places: Mapping[tirx.Var, tirx.Expr] | None = None
    ) -> tirx.Expr:
        """Expression over buffers of the kernel, with all its loads replaced.

        Parameters
        ----------
        expr
            From a stage.
        places
            Values of its variables.

        Returns
        -------
        tvm.tirx.Expr
            Valid behind `bindings`.
        """
        placed = substituted(expr, places or {})
        # What is guarded by a condition must not be computed before it.
        if calls_of(placed, CHOICE):
            return tidied(self._inline(placed))
        return tidied(self._load(self._flatten(placed)))

    def _flatten(self, expr: tirx.Expr) -> tirx.Expr:
        """Let-bindings as statements, outer ones first."""

        def visit(part: tirx.Expr) -> tirx.Expr:
            while isinstance(part, tirx.Let):
                fresh = tirx.Var(part.var.name, part.var.ty)
                value = tidied(self._load(self._flatten(part.value)))
                if isinstance(value, tirx.Min | tirx.Max):
                    # TVM would make ``max(c - x, 0)`` of ``c - min(x, c)``: one more instruction.
                    value = tirx.call_pure_extern(str(value.ty.dtype), OPAQUE, value)
                self.bindings.append(tirx.Bind(fresh, value))
                part = substituted(part.body, {part.var: fresh})
            return part

        return _map(expr, (ir.Expr, visit), order="pre")

    def _load(self, expr: tirx.Expr) -> tirx.Expr:
        return _map(expr, (ir.TensorLoad, lambda load: self.entry(load.source, load.indices)))

    def _inline(self, expr: tirx.Expr) -> tirx.Expr:
        """Producers inlined where they are read, under whatever condition that is."""

        def load(part: tirx.Expr) -> tirx.Expr:
            stage = self.graph.producer(part.source)
            if isinstance(self._leaves.get(part.source), EarlyLoad):
                return tirx.BufferLoad(part.source, list(part.indices))
            if part.source in self._leaves or stage is None:
                return self.entry(part.source, part.indices)
            if stage.reduced:
                raise NotElementwise(f"stage {stage.name!r} is a reduction")
            places = dict(zip(stage.axes, _axis_values(stage, part.indices), strict=True))
            return self._inline(substituted(stage.value, places))

        def rename(let: tirx.Let) -> tirx.Let:
            fresh = tirx.Var(let.var.name, let.var.ty)
            return tirx.Let(fresh, let.value, substituted(let.body, {let.var: fresh}))

        return _map(expr, (ir.TensorLoad, load), (tirx.Let, rename))

    def define(self, buffer: tirx.Var, indices: Sequence[tirx.Expr], value: tirx.Expr) -> tirx.Expr:
        """Bind the value of an entry that is computed, for all who read it.

        Parameters
        ----------
        buffer, indices
            The entry.
        value
            Of `value` for its stage.

        Returns
        -------
        tvm.tirx.Expr
            The same, valid behind `bindings`.
        """
        bound = self._bind(value, buffer.name)
        self._known.setdefault(buffer, []).append((list(indices), bound))
        return bound

    def _bind(self, value: tirx.Expr, name: str) -> tirx.Expr:
        if isinstance(value, tirx.Var | tirx.IntImm):
            return value
        if isinstance(value, tirx.Cast) and narrows(value):
            # Whoever reads it widens it again: registers have 32 bits.
            return tirx.Cast(value.ty, self._bind(value.value, name))
        if self._is_place(value):
            return value
        var = tirx.Var(name, value.ty)
        found = substituted(value, self._looked_up)
        read = nodes_of(found, ir.TensorLoad)
        if read and self._is_place(found, [load.source for load in read]):
            self._looked_up[var] = found
        self.bindings.append(tirx.Bind(var, value))
        return var

    def _is_place(self, value: tirx.Expr, tables: Sequence[tirx.Var] = ()) -> bool:
        """Whether a value is made of places alone, which an index may need as they are.

        Or of what parameters hold at such places, which `tables` are.
        """
        parts = nodes_of(value, ir.Call, ir.Var, *([] if tables else [ir.TensorLoad]))
        bound = [statement.var for statement in self.bindings]
        return all(table in self.graph.parameters for table in tables) and all(
            isinstance(part, tirx.Var) and not any(part.same_as(var) for var in bound)
            for part in parts
        )

    def before(self, *statements: tirx.Stmt) -> tirx.Stmt:
        """Put the bindings before statements that use the entries."""
        all_statements = [*self.bindings, *statements]
        return all_statements[0] if len(all_statements) == 1 else tirx.SeqStmt(all_statements)


def _map(expr: tirx.Expr, *rewrites: tuple[type, Callable[..., Any]], order: str = "post") -> Any:
    """``structural_map`` whose callbacks may refuse: exceptions lose their type on the way."""
    refused: list[NotElementwise] = []

    def caught(rewrite: Callable[..., Any]) -> Callable[..., Any]:
        def apply(part: Any) -> Any:
            try:
                return rewrite(part)
            except NotElementwise as error:
                refused.append(error)
                return part

        return apply

    mapped = tvm_ffi.structural_map(
        expr, [(kind, caught(rewrite)) for kind, rewrite in rewrites], order=order
    )
    if refused:
        raise refused[0]
    return mapped


def loads_of(expr: tirx.Expr) -> list[ir.TensorLoad]:
    """Loads in an expression, those in indices of others included."""
    return nodes_of(expr, ir.TensorLoad)


def tidied(expr: tirx.Expr) -> tirx.Expr:
    """Leave out what registers of 32 bits do not need.

    These are casts to a narrower type and back, because emission narrows only what fits, and the
    lower bound of a saturation that a maximum raises. Amounts of shifts that are no constants are
    hidden from TVM's simplifier, which puts their values in and then takes comparisons of what is
    shifted for decided.
    """

    def raise_bound(maximum: tirx.Max) -> tirx.Expr:
        inner, bound = maximum.a, maximum.b
        if getattr(getattr(inner, "op", None), "name", "") != SATURATE:
            return maximum
        half = 1 << (int(inner.args[1]) - 1)
        if not isinstance(bound, tirx.IntImm) or not -half <= int(bound) < half:
            return maximum
        return tirx.max(tirx.min(inner.args[0], tirx.const(half - 1, "int32")), bound)

    def widen(cast: tirx.Cast) -> tirx.Expr:
        inner = cast.value
        if isinstance(inner, tirx.Cast) and narrows(inner) and inner.value.ty == cast.ty:
            return inner.value
        return cast

    def hide(shift: tirx.LShift | tirx.RShift) -> tirx.Expr:
        amount = shift.b
        if isinstance(amount, tirx.IntImm | ir.Call):
            return shift
        return type(shift)(shift.a, tirx.call_pure_extern(str(amount.ty.dtype), OPAQUE, amount))

    return tvm_ffi.structural_map(
        expr,
        [(tirx.Cast, widen), (tirx.Max, raise_bound), (tirx.LShift, hide), (tirx.RShift, hide)],
    )


def narrows(cast: tirx.Cast) -> bool:
    """Whether a cast goes to fewer bits."""
    return _bits(cast.value) > _bits(cast)


def _bits(expr: tirx.Expr) -> int:
    dtype = str(expr.ty)
    return 1 if dtype == "bool" else int(dtype.lstrip("uint"))


def _axis_values(stage: StageDefinition, indices: Sequence[tirx.Expr]) -> list[tirx.Expr]:
    """Values of a stage's axes at the entry that lies at given indices of its buffer.

    An index is an axis, a constant (of an axis of one entry), or, where axes were merged, a sum of
    axes times how many entries lie behind each.
    """
    values: dict[tirx.Var, tirx.Expr] = {}
    sizes = dict(zip(stage.axes, stage.extents, strict=True))
    for written, index in zip(stage.indices, indices, strict=True):
        for place, (axis, stride) in enumerate(_terms(written)):
            if axis is not None:
                part = index // stride if stride > 1 else index
                values[axis] = part if place == 0 else part % sizes[axis]
    for axis in stage.axes:
        if axis not in values:
            if sizes[axis] != 1:
                raise NotElementwise(f"stage {stage.name!r} does not say where axis {axis} lies")
            values[axis] = tirx.const(0, str(axis.ty.dtype))
    return [values[axis] for axis in stage.axes]


def _terms(index: tirx.Expr) -> list[tuple[tirx.Var | None, int]]:
    """Axes of an index ``a * n + b * m + ...`` with what each is multiplied by, largest first."""
    if isinstance(index, tirx.IntImm):
        return [(None, int(index.value))]
    if isinstance(index, tirx.Var):
        return [(index, 1)]
    if isinstance(index, tirx.Add):
        return sorted([*_terms(index.a), *_terms(index.b)], key=lambda term: -term[1])
    if isinstance(index, tirx.Mul) and isinstance(index.a, tirx.Var):
        return [(index.a, int(index.b))]
    raise NotElementwise(f"a stage writes at {index}")


def _definition(statement: tirx.Stmt) -> StageDefinition:
    while isinstance(statement, tirx.For):
        statement = statement.body
    if not isinstance(statement, s_tir.SBlockRealize):
        raise NotElementwise(f"a statement of the kernel is {type(statement).__name__}, no block")
    block = statement.block
    store = block.body
    if not isinstance(store, tirx.BufferStore):
        raise NotElementwise(f"block {block.name_hint!r} is no single store")
    spatial = [axis for axis in block.iter_vars if int(axis.iter_type) == tirx.IterVar.DataPar]
    reduced = [axis for axis in block.iter_vars if int(axis.iter_type) != tirx.IterVar.DataPar]
    value, combine, initial = store.value, "", None
    if reduced:
        kinds = {tirx.Add: "sum", tirx.Max: "max"}
        combine = kinds.get(type(value), "")
        if not combine or block.init is None:
            raise NotElementwise(f"block {block.name_hint!r} is neither a sum nor a maximum")
        value, initial = value.b, block.init.value
    return StageDefinition(
        block.name_hint,
        store.buffer,
        tuple(axis.var for axis in spatial),
        tuple(int(axis.dom.extent) for axis in spatial),
        tuple(axis.var for axis in reduced),
        tuple(int(axis.dom.extent) for axis in reduced),
        tuple(store.indices),
        value,
        combine,
        initial,
    )
