"""Results that a kernel may write over an argument, proved on its lowered loops.

A kernel that copies a block of rows before it multiplies them never reads those rows again, so its
result may lie where they were. Whether that holds is read off the loops: no byte is written before
it was read for the last time. Nothing is known here of operators, rules or targets.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import tvm_ffi
from tvm import ir, sym, tirx

from ..nodes import calls_of, nodes_of, substituted
from .interface import item_size
from .model import KernelParameter

# Bounds are found for each way in which minima and maxima of a place may be decided.
_MOST_CHOICES = 6


def writable_over(
    func: tirx.PrimFunc, parameters: Sequence[KernelParameter]
) -> dict[tuple[int, int], int]:
    """Find the arguments that a result may lie over, and how far behind their beginning.

    Parameters
    ----------
    func
        Of `ibert_tvm.targets.aot.lower.lower_kernels`.
    parameters
        Its arguments without the workspace.

    Returns
    -------
    dict
        For (argument, result), by position: the result may begin at most so many bytes behind the
        first of the argument; a negative number where it has to begin before. Nothing where no
        such number helps: the result would end before the argument begins.
    """
    accesses = _Reader(func, parameters)
    if accesses.unknown:
        return {}
    found = {}
    for written, result in enumerate(parameters):
        for read, argument in enumerate(parameters):
            usable = not (argument.written or {read, written} & accesses.escaped)
            if result.written and usable and _may_share(argument.dtype, result.dtype):
                lead = accesses.lead(read, written)
                if lead is not None and -lead < result.nbytes:
                    found[read, written] = lead
    return found


def _may_share(one: str, other: str) -> bool:
    """Whether C lets pointers to both types point to the same bytes."""
    return one == other or 1 in (item_size(one), item_size(other))


def aliased(func: tirx.PrimFunc, arguments: Collection[int]) -> tirx.PrimFunc:
    """A kernel whose code stays right if some of its arguments share bytes.

    The code generator takes pointers to be apart, and gives each buffer a type of its own, but for
    those whose address is an expression.

    Parameters
    ----------
    func
        As in `writable_over`.
    arguments
        Positions of those that may share bytes.
    """
    pointers = [func.params[place] for place in sorted(arguments)]

    def declared(statement: tirx.DeclBuffer) -> tirx.Stmt:
        if not any(pointer.same_as(statement.data) for pointer in pointers):
            return statement
        first = tirx.decl_buffer((1,), "uint8", f"{statement.buffer.name}_bytes", statement.data)
        address = tirx.address_of(tirx.BufferLoad(first, [0]))
        return tirx.SeqStmt(
            [
                tirx.DeclBuffer(first, data=statement.data),
                tirx.DeclBuffer(statement.buffer, data=address),
            ]
        )

    body = tvm_ffi.structural_map(func.body, (tirx.DeclBuffer, declared))
    return func.with_body(body).with_attr("tirx.noalias", False)


@dataclass(frozen=True, eq=False)
class _Loop:
    """A loop: its variable runs from 0 to below `extent` at most; one by one, if `ordered`."""

    var: tirx.Var
    extent: int
    ordered: bool


_Path = tuple[_Loop | int, ...]


@dataclass(frozen=True)
class _Access:
    """Bytes of an argument, from `first` to before `end`, that a statement reads or writes.

    `path` leads to the statement: loops, and places in a sequence of statements.
    """

    argument: int
    written: bool
    first: tirx.Expr
    end: tirx.Expr
    path: _Path


class _Reader:
    """All accesses of a kernel to its arguments."""

    def __init__(self, func: tirx.PrimFunc, parameters: Sequence[KernelParameter]) -> None:
        self.parameters = parameters
        self.accesses: list[_Access] = []
        self.escaped: set[int] = set()
        """Arguments whose address leaves the loops, to a microkernel for instance."""
        self.unknown = False
        """Whether there is a statement of another kind than those that are understood."""
        self._buffers: dict[tirx.Var, int] = {func.params[i]: i for i in range(len(parameters))}
        self._bound: dict[tirx.Var, tirx.Expr] = {}
        self._analyzer = sym.Analyzer()
        self._statement(func.body, ())

    # -- reading ----------------------------------------------------------------------------------

    def _statement(self, statement: tirx.Stmt, path: _Path) -> None:
        if isinstance(statement, tirx.SeqStmt):
            for place, one in enumerate(statement.seq):
                self._statement(one, (*path, place))
        elif isinstance(statement, tirx.AttrStmt):
            self._statement(statement.body, path)
        elif isinstance(statement, tirx.For):
            self._reads(statement.extent, (*path, 0))
            loop = self._loop(statement)
            self._statement(statement.body, (*path, 1, loop))
        elif isinstance(statement, tirx.IfThenElse):
            self._reads(statement.condition, (*path, 0))
            self._statement(statement.then_case, (*path, 1))
            if statement.else_case is not None:
                self._statement(statement.else_case, (*path, 2))
        elif isinstance(statement, tirx.Bind):
            self._reads(statement.value, path)
            self._bound[statement.var] = self._resolved(statement.value)
        elif isinstance(statement, tirx.BufferStore):
            for part in (statement.value, *statement.indices):
                self._reads(part, (*path, 0))
            self._note(statement.buffer, statement.indices, True, (*path, 1))
        elif isinstance(statement, tirx.DeclBuffer):
            self._declaration(statement)
        elif isinstance(statement, tirx.Evaluate):
            self._reads(statement.value, path)
        elif not isinstance(statement, tirx.AllocBuffer):
            self.unknown = True

    def _loop(self, statement: tirx.For) -> _Loop:
        ordered = statement.kind in (tirx.ForKind.SERIAL, tirx.ForKind.UNROLLED)
        begins = isinstance(statement.min, tirx.IntImm) and int(statement.min) == 0
        if not begins or statement.step is not None:
            self.unknown = True
        extent = self._analyzer.const_int_bound(self._resolved(statement.extent)).max_value
        return _Loop(statement.loop_var, int(extent), ordered)

    def _declaration(self, statement: tirx.DeclBuffer) -> None:
        """Another name for a buffer that is known, or for a place in it."""
        data = statement.data
        if isinstance(data, ir.Call) and len(data.args) == 1 and isinstance(data.args[0], ir.Var):
            data = data.args[0]
        if isinstance(data, ir.Var):
            if data in self._buffers:
                self._buffers[statement.buffer] = self._buffers[data]
        else:
            self._reads(data, ())

    def _reads(self, expression: tirx.Expr, path: _Path) -> None:
        """Note what an expression loads; buffers that it names otherwise escape."""
        for let in nodes_of(expression, tirx.Let):
            self._bound[let.var] = self._resolved(let.value)
        for load in nodes_of(expression, ir.TensorLoad):
            self._note(load.source, load.indices, False, path)
        named = [
            var
            for call in calls_of(expression, "tirx.address_of")
            for var in nodes_of(call, ir.Var)
        ]
        rest = tvm_ffi.structural_map(
            expression, (ir.TensorLoad, lambda load: tirx.Var("loaded", load.ty))
        )
        named += nodes_of(rest, ir.Var)
        self.escaped |= {self._buffers[var] for var in named if var in self._buffers}

    def _note(
        self, buffer: tirx.Var, indices: Sequence[tirx.Expr], written: bool, path: _Path
    ) -> None:
        argument = self._buffers.get(buffer)
        if argument is None:
            return
        if len(indices) != 1:
            self.unknown = True
            return
        index, last = indices[0], indices[0]
        if isinstance(index, tirx.Ramp):
            last = index.base + index.stride * (index.lanes - 1)
            self.unknown |= not self._analyzer.can_prove(index.stride >= 0)
            index = index.base
        size = item_size(self.parameters[argument].dtype)
        first, end = (self._resolved(place) * size for place in (index, last + 1))
        self.accesses.append(_Access(argument, written, first, end, path))

    def _resolved(self, expression: tirx.Expr) -> tirx.Expr:
        """Without variables that stand for an expression; anything, where it binds some itself."""
        if nodes_of(expression, tirx.Let):
            return tirx.Var("anything", expression.ty)
        return substituted(expression, self._bound)

    # -- proving ----------------------------------------------------------------------------------

    def lead(self, read: int, written: int) -> int | None:
        """How far behind an argument's beginning a result may begin; None where nothing helps."""
        reads = [one for one in self.accesses if one.argument == read]
        writes = [one for one in self.accesses if one.argument == written and one.written]
        least = self.parameters[read].nbytes
        for write in writes:
            for later in reads:
                for distance in _distances(write, later):
                    if distance is None:
                        return None
                    least = min(least, distance)
        return least


def _distances(write: _Access, read: _Access) -> Iterator[int | None]:
    """Least distances from what is written to what is read later, for every way to be later."""
    common: list[_Loop] = []
    before = False
    for one, other in zip(write.path, read.path, strict=False):
        if isinstance(one, int) and isinstance(other, int) and one != other:
            before = one < other
            break
        if isinstance(one, _Loop):
            common.append(one)
    if not all(loop.ordered for loop in common):
        yield None
    if before:
        yield _distance(write, read, common, None)
    for depth, loop in enumerate(common):
        if loop.extent > 1:
            yield _distance(write, read, common[:depth], loop)


def _distance(
    write: _Access, read: _Access, same: Sequence[_Loop], later: _Loop | None
) -> int | None:
    """Least ``read.first - write.end``.

    Parameters
    ----------
    write, read
        What is written, and read afterwards.
    same
        Loops that are at the same iteration.
    later
        The loop that is at a later iteration when it reads, if there is one; all others are
        anywhere.
    """
    analyzer = sym.Analyzer()
    values: dict[tirx.Var, tirx.Expr] = {}

    def at(access: _Access, place: tirx.Expr) -> tirx.Expr:
        own = {**values}
        for loop in access.path:
            if isinstance(loop, _Loop) and loop.var not in own:
                own[loop.var] = _anywhere(analyzer, loop.var, loop.extent)
        return substituted(place, own)

    for loop in same:
        values[loop.var] = _anywhere(analyzer, loop.var, loop.extent)
    if later is None:
        return _least(analyzer, at(read, read.first) - at(write, write.end))
    values[later.var] = _anywhere(analyzer, later.var, later.extent - 1)
    end = at(write, write.end)
    steps = _anywhere(analyzer, later.var, later.extent - 1)
    values[later.var] = values[later.var] + 1 + steps
    return _least(analyzer, at(read, read.first) - end)


def _anywhere(analyzer: sym.Analyzer, var: tirx.Var, extent: int) -> tirx.Var:
    """A variable of its own that may have any value from 0 to below an extent."""
    fresh = tirx.Var(var.name, var.ty)
    analyzer.bind(fresh, ir.Range(0, max(extent, 1)))
    return fresh


def _least(analyzer: sym.Analyzer, expression: tirx.Expr, choices: int = 0) -> int | None:
    """Greatest lower bound that is found; None without one."""
    simplified = analyzer.simplify(expression)
    bound = analyzer.const_int_bound(simplified)
    found = int(bound.min_value)
    least = None if found == int(bound.NEG_INF) else found
    either = nodes_of(simplified, tirx.Min, tirx.Max)
    if not either or choices == _MOST_CHOICES:
        return least
    # Whichever of the two it is: bounds of minima forget which variables they depend on.
    decided = [
        _least(analyzer, _replaced(simplified, either[0], side), choices + 1)
        for side in (either[0].a, either[0].b)
    ]
    known = [one for one in decided if one is not None]
    if len(known) < len(decided):
        return least
    return min(known) if least is None else max(least, min(known))


def _replaced(tree: tirx.Expr, node: tirx.Expr, other: tirx.Expr) -> tirx.Expr:
    same = tvm_ffi.structural_equal
    return tvm_ffi.structural_map(tree, (type(node), lambda one: other if same(one, node) else one))
