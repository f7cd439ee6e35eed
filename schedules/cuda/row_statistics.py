"""Numbers of a row that its entries depend on: sums and maxima over the channels, what follows.

Every thread of a row adds what its own channels contribute (or keeps the largest); a device
function does the same over the threads. What follows from the sums is computed by all of them,
which takes no longer than by one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tvm import ir, tirx

from ..stages import Leaf, NotElementwise, StageDefinition, StageGraph, loads_of
from .runs import Loads, RunOfChannels
from .statements import address, call, guarded, registers, sequence

_ZERO = tirx.const(0, "int32")


@dataclass(frozen=True)
class RowSum:
    """A sum, or the largest, over the channels of a row.

    Attributes
    ----------
    total
        The stage that it is the result of, one number per row.
    part
        Stage with sums over groups of channels, which `total` adds up; None where there are no
        groups.
    group
        Channels of a group; 1 where there are none.
    """

    total: StageDefinition
    part: StageDefinition | None
    group: int


def row_sum_of(graph: StageGraph, stage: StageDefinition, channels: int) -> RowSum:
    """Find out how a reduction to one number per row goes over the channels.

    Parameters
    ----------
    graph
        The kernel's.
    stage
        A reduction with one axis.
    channels
        Channels of a row.

    Raises
    ------
    NotElementwise
        If it is none over channels, or over groups of channels.
    """
    if len(stage.reduced) != 1:
        raise NotElementwise(f"stage {stage.name!r} goes over more than the channels of a row")
    if stage.combine == "max" and str(stage.buffer.ty.dtype) != "int32":
        raise NotElementwise(f"stage {stage.name!r} is a maximum of other than 32 bits")
    inner = stage.value.value if isinstance(stage.value, tirx.Cast) else stage.value
    part = graph.producer(inner.source) if isinstance(inner, ir.TensorLoad) else None
    if part is None or not part.reduced:
        if stage.reduced_extents[0] != channels:
            raise NotElementwise(f"stage {stage.name!r} adds up something else than channels")
        return RowSum(stage, None, 1)
    groups = part.combine == stage.combine == "sum" and len(part.reduced) == 1
    if not groups or stage.reduced_extents[0] * part.reduced_extents[0] != channels:
        raise NotElementwise(f"stage {stage.name!r} adds up neither channels nor groups of them")
    return RowSum(stage, part, part.reduced_extents[0])


class RowScalars:
    """Numbers of the row that a thread works on.

    Parameters
    ----------
    graph
        The kernel's.
    run
        The channels of the thread.
    row
        The row.
    leaves
        How parameters are read.
    warps
        Warps that work on one row.
    loads
        What must be loaded whenever the threads go over the channels; None if all is in registers.

    Attributes
    ----------
    statements
        Statements that compute the numbers.
    leaves
        How what follows reads parameters and the numbers.
    """

    def __init__(
        self,
        graph: StageGraph,
        run: RunOfChannels,
        row: tirx.Expr,
        leaves: dict[tirx.Var, Leaf],
        warps: int,
        loads: Loads | None = None,
    ) -> None:
        self.graph = graph
        self.run = run
        self.row = row
        self.leaves = dict(leaves)
        self.warps = warps
        self.loads = loads
        self.statements: list[tirx.Stmt] = []
        self._slots = 0
        shape = (max(warps * sum(bool(stage.reduced) for stage in graph.stages.values()), 1),)
        self._scratch = tirx.decl_buffer(shape, "int64", "sums_of_warps", scope="shared")

    def add(self, stages: list[StageDefinition], channels: int) -> None:
        """Compute stages with one number per row, in program order.

        Sums that do not wait for each other are added up over the threads together.
        """
        waiting: list[RowSum] = []
        unknown = {stage.buffer for stage in stages}
        for stage in stages:
            if stage.reduced:
                waiting.append(row_sum_of(self.graph, stage, channels))
        while stages:
            ready = [stage for stage in stages if not self._reads(stage, unknown)]
            sums = [one for one in waiting if one.total in ready]
            scalars = [stage for stage in ready if not stage.reduced]
            if not ready:
                raise NotElementwise("numbers of a row wait for each other")
            # Scalars first, as long as there are: so as many sums as possible come together.
            for stage in scalars:
                self._scalar(stage)
            if not scalars:
                sums = [one for one in sums if one.total.combine == sums[0].total.combine]
                self._sum_up(sums)
            done = scalars or [one.total for one in sums]
            unknown -= {stage.buffer for stage in done}
            stages = [stage for stage in stages if stage not in done]

    def _reads(self, stage: StageDefinition, buffers: set[tirx.Var]) -> bool:
        """Whether an entry of a stage needs one of some buffers, by whatever way."""
        todo, seen = [stage], set()
        while todo:
            current = todo.pop()
            for load in loads_of(current.value):
                producer = self.graph.producer(load.source)
                if load.source in buffers:
                    return True
                if producer is None or producer.name in seen or load.source in self.leaves:
                    continue
                seen.add(producer.name)
                todo.append(producer)
        return False

    def _scalar(self, stage: StageDefinition) -> None:
        evaluation = self.graph.evaluate(self.leaves)
        value = evaluation.value(stage, [self.row])
        held = self._register(stage)
        self.statements += [*evaluation.bindings, tirx.BufferStore(held, value, [_ZERO])]
        self._know(stage, held)

    def _register(self, stage: StageDefinition) -> tirx.Var:
        # Not a variable: TVM would write its value out wherever it is read.
        held = registers(stage.name, 1, str(stage.buffer.ty.dtype))
        self.statements.append(tirx.AllocBuffer(held))
        return held

    def _know(self, stage: StageDefinition, held: tirx.Var) -> None:
        self.leaves[stage.buffer] = lambda _indices: tirx.BufferLoad(held, [_ZERO])

    def _sum_up(self, sums: list[RowSum]) -> None:
        """Partial sums of the thread, in one pass over its channels, then those of all threads."""
        own = []
        passes = []
        for one in sums:
            held = self._register(one.total)
            own.append(held)
            dtype = str(one.total.buffer.ty.dtype)
            largest = one.total.combine == "max"
            nothing = tirx.min_value(dtype) if largest else tirx.const(0, dtype)
            self.statements.append(tirx.BufferStore(held, nothing, [_ZERO]))
            passes.append(self._partial_sum(one, held))
        if self.loads is not None:
            passes[:0] = self.loads.copies
        self.statements.append(self.run.each_step(sequence(passes)))
        combine = sums[0].total.combine
        step = 2 if combine == "sum" else 1
        for start in range(0, len(sums), step):
            together = [address(held, 0) for held in own[start : start + step]]
            self.statements.append(tirx.Evaluate(self._over_threads(combine, together)))
        for one, held in zip(sums, own, strict=True):
            self._know(one.total, held)

    def _over_threads(self, combine: str, sums: list[tirx.Expr]) -> tirx.Expr:
        """Call of the device function that combines what the threads of the row have."""
        if self.warps == 1:
            return call(f"ibert::row_{combine}", *sums)
        # All sums have places of one array: TVM would let arrays share memory, without a barrier.
        slot = self._slots
        self._slots += len(sums)
        name = f"ibert::row_{combine}_of_warps<{self.warps}, {slot}>"
        return call(name, *sums, self._scratch.data)

    @property
    def scratch(self) -> list[tirx.Stmt]:
        """Declarations of shared memory that the statements use."""
        return [tirx.AllocBuffer(self._scratch)] if self._slots else []

    def _partial_sum(self, one: RowSum, held: tirx.Var) -> tirx.Stmt:
        """Add what a run of the thread contributes to a sum."""
        run = self.run
        if one.part is None:
            evaluation = self.graph.evaluate(self.leaves)
            value = evaluation.value(one.total, [self.row], [run.channel])
            load = tirx.BufferLoad(held, [_ZERO])
            new = tirx.max(load, value) if one.total.combine == "max" else load + value
            return run.each_lane(evaluation.before(tirx.BufferStore(held, new, [_ZERO])))
        # The narrower type of a group's sum holds what a run has of the group as well.
        length = math.gcd(one.group, run.width)
        dtype, wide = str(one.part.buffer.ty.dtype), str(held.ty.dtype)
        group = registers(one.part.name, 1, dtype)
        evaluation = self.graph.evaluate(self.leaves)
        part, place = tirx.floordiv(run.channel, one.group), tirx.floormod(run.channel, one.group)
        value = evaluation.value(one.part, [self.row, part], [place])
        so_far, load = tirx.BufferLoad(group, [_ZERO]), tirx.BufferLoad(held, [_ZERO])
        within = tirx.floormod(run.lane, length)
        clear = tirx.BufferStore(group, tirx.const(0, dtype), [_ZERO])
        add = tirx.BufferStore(held, load + so_far.astype(wide), [_ZERO])
        body = [
            guarded(within == 0, clear),
            *evaluation.bindings,
            tirx.BufferStore(group, so_far + value, [_ZERO]),
            guarded(within == length - 1, add),
        ]
        return tirx.SeqStmt([tirx.AllocBuffer(group), run.each_lane(tirx.SeqStmt(body))])
