"""Kernels that work row by row or entry by entry: LayerNorm, pooling, embedding, the rest.

Strategy
--------
1. Read the stages and inline those that need not be kept.
2. Rows run in parallel. What is made of the numbers of a row is computed in one loop over rows, and
   those numbers (sums, maxima, what follows from them) just before it, so a row stays in cache.
3. Reductions over a row stay plain loops over contiguous integers, which the compiler vectorises
   (integer sums and maxima may be reordered), but where the target asks for sums by lanes.
4. Sums over rows, one per column, are vectorised along columns. Where rows have several axes, a
   row is summed just before its results.
5. Everything else is vectorised explicitly along channels, or unrolled where there are no vectors;
   where channels are paired with others of their head, by the runs that stay together.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

from tvm import ir, s_tir, sym, tirx

from ibert_tvm.targets import TargetDescription

from .loops import (
    block_names,
    extent,
    inline_elementwise,
    output_blocks,
    split_row_sums,
    unroll_innermost,
    unroll_row_reductions,
    vectorise_innermost,
    vectorise_row_sums,
)
from .nodes import Block, Loop, calls_of, contains, nodes_of, substituted
from .row_guard import mark_row_loop
from .rule import Rule
from .stages import CHOICE, NotElementwise, StageDefinition, StageGraph, loads_of

# What the stages of a kernel that works row by row are, read off their axes and what they read.
#
# No name of a stage and no kind of kernel is known here, so an operator that did not exist when
# this was written is scheduled like those that did.

_COMPARISONS = (tirx.LT, tirx.LE, tirx.GT, tirx.GE)


class RowStages:
    """Stages of a kernel by what is to be done with them.

    Parameters
    ----------
    graph
        The kernel.

    Attributes
    ----------
    reductions
        By name, the reductions over the entries of a row, in program order. The value is the name
        of the reduction over groups of entries that is combined, or None where there are no groups.
    sums
        Names of those among `reductions` that add the entries of a row up one by one.
    columns
        Names of the reductions over rows, which leave one number per column.
    kept
        Names of the intermediates that stay blocks: reductions, numbers of a row, and entries that
        would be computed again for every reader although they wait for numbers of the row, or for
        those of columns on the way to others. Others are inlined.
    entries
        Names of the entries among `kept`, and of results that are entries; none with one to a row.
    anchor
        Name of the first entries that wait for numbers of the row; of a result where there are
        none.
    whole_rows
        Whether a row is best worked on from its reductions to its results.

    Raises
    ------
    NotElementwise
        If a reduction goes neither over the entries of a row nor over rows.
    """

    def __init__(self, graph: StageGraph) -> None:
        stages = list(graph.stages.values())
        results = [stage.name for stage in stages if stage.buffer in graph.outputs]
        self.reductions: dict[str, str | None] = {}
        self.columns: list[str] = []
        groups: list[str] = []
        for stage in reversed(stages):
            if stage.reduced and stage.name not in groups:
                if len(stage.axes) == len(stage.reduced) == 1:
                    part = _groups(graph, stage)
                    groups += [] if part is None else [part]
                    self.reductions = {stage.name: part, **self.reductions}
                elif _goes_along_columns(stage):
                    self.columns.insert(0, stage.name)
                else:
                    raise NotElementwise(
                        f"block {stage.name!r} reduces neither the entries of a row nor rows"
                    )
        self.sums = [
            name
            for name, part in self.reductions.items()
            if part is None and graph.stages[name].combine == "sum"
        ]
        numbers = {stage.name for stage in stages if len(stage.axes) == 1} - {*results}
        numbers |= {*self.reductions}
        awaited = graph.sources(self.reductions)
        waiting = [
            stage.name
            for stage in stages
            if not stage.reduced and len(stage.axes) > 1 and graph.reads(stage) & numbers
        ]
        last = [name for name in waiting if name not in awaited]
        early = [name for name in waiting if name in awaited]
        free = [name for name in results if name not in awaited]
        free = sorted(free, key=lambda name: name not in self.reductions)
        self.anchor = [*early, *last, *free][0]
        self.entries = [
            name
            for name in dict.fromkeys([*early, *last[:1], *results])
            if not graph.stages[name].reduced
            and (len(graph.stages[name].axes) > 1 or not self.reductions)
            and (graph.stages[name].extents[-1] > 1 or not numbers)
        ]
        between = graph.sources(self.columns)
        steps = {
            stage.name
            for stage in stages
            if stage.name in between and not stage.reduced and graph.reads(stage) & {*self.columns}
        }
        self.kept = {*numbers, *groups, *self.columns, *self.entries, *steps, self.anchor}
        sums = {*self.columns}
        self.whole_rows = bool(numbers) and (not sums or bool(sums & awaited))


def counts_on(graph: StageGraph) -> bool:
    """Whether a reduction goes as far as the entry that it is for: a running count or sum."""
    return any(_compares(stage) for stage in graph.stages.values() if stage.reduced)


def _compares(stage: StageDefinition) -> bool:
    """Whether what is reduced depends on how its place compares with that of the result."""
    return any(
        all(
            any(side.same_as(var) for side in (comparison.a, comparison.b) for var in variables)
            for variables in (stage.axes, stage.reduced)
        )
        for comparison in nodes_of(stage.value, *_COMPARISONS)
    )


def _groups(graph: StageGraph, total: StageDefinition) -> str | None:
    """Name of the reduction over groups of entries that another one combines."""
    value = total.value.value if isinstance(total.value, tirx.Cast) else total.value
    part = graph.producer(value.source) if isinstance(value, ir.TensorLoad) else None
    if part is None or not part.reduced or len(part.axes) != 2 or _goes_along_columns(part):
        return None
    return part.name


def _goes_along_columns(stage: StageDefinition) -> bool:
    """Whether neighbouring results read neighbouring entries of a row, in each step."""
    if len(stage.axes) < 2 or len(stage.reduced) != 1:
        return False
    places = [load.indices[-1] for load in loads_of(stage.value)]
    return any(_moves_with(place, stage.axes[-1], stage.reduced[0]) for place in places)


def _moves_with(place: tirx.Expr, axis: tirx.Var, step: tirx.Var) -> bool:
    """Whether a place is one further for the next entry of an axis, and the same in all steps."""
    if place.same_as(axis):
        return True
    moved = sym.Analyzer().simplify(substituted(place, {axis: axis + 1}) - place)
    return isinstance(moved, tirx.IntImm) and int(moved) == 1 and not contains(place, step)


# Runs of channels that a kernel reads as they lie, where it reads others elsewhere.
#
# Most kernels read entry c of a row for channel c, so any number of neighbouring channels is a
# vector. A kernel that pairs channels of a head reads entry c + D/2 for the first half of a head
# and c - D/2 for the second: only within a half do neighbours read neighbours, and what is done
# differs from half to half. Which stretches those are is read off the indices and conditions of a
# block.


@dataclass(frozen=True)
class ChannelRuns:
    """How channels of a row are read.

    Attributes
    ----------
    run
        The row falls into stretches of so many channels, in each of which neighbours read
        neighbours, or the same, under the same conditions.
    period
        What a channel reads and what one reads so many behind it are so many apart, or the same,
        under the same conditions; a multiple of `run`.
    """

    run: int
    period: int


def channel_runs(block: tirx.SBlock) -> ChannelRuns | None:
    """Tell in which stretches the channels of a block's rows are read.

    Parameters
    ----------
    block
        Computes entries; its last axis goes over channels.

    Returns
    -------
    ChannelRuns or None
        None if all channels are one run.
    """
    axis = block.iter_vars[-1]
    channel, extent = axis.var, int(axis.dom.extent)
    value = block.body.value if isinstance(block.body, tirx.BufferStore) else None
    if value is None:
        return None
    indices = [index for load in loads_of(value) for index in load.indices]
    choices = [call.args[0] for call in calls_of(value, CHOICE)]
    conditions = choices + [select.condition for select in nodes_of(value, tirx.Select)]
    parts = (nodes_of(expr, tirx.FloorDiv, tirx.FloorMod) for expr in (*indices, *conditions))
    if not any(contains(part.a, channel) for part in chain.from_iterable(parts)):
        return None
    places = [expr for expr in indices if contains(expr, channel)]
    tests = [expr for expr in conditions if contains(expr, channel)]

    def alike(size: int, between: bool) -> bool:
        """Whether stretches of `size` are runs; with `between`, whether all are read alike."""
        analyzer = sym.Analyzer()
        outer, inner = tirx.Var("outer", "int32"), tirx.Var("inner", "int32")
        for var, count in ((outer, extent // size), (inner, size)):
            analyzer.bind(var, ir.Range(0, count))
        start, step = (inner, outer * size) if between else (outer * size, inner)

        def at(expr: tirx.Expr, place: tirx.Expr) -> tirx.Expr:
            return analyzer.simplify(substituted(expr, {channel: place}))

        differences = [at(p, outer * size + inner) - at(p, start) for p in places]
        steps = (step, step * 0)
        moves = outer if between else inner
        return all(
            any(analyzer.can_prove_equal(difference, value) for value in steps)
            for difference in differences
        ) and not any(contains(at(test, outer * size + inner), moves) for test in tests)

    divisors = [size for size in range(extent, 0, -1) if extent % size == 0]
    run = next(size for size in divisors if alike(size, between=False))
    repeats = (size for size in divisors[::-1] if size % run == 0)
    period = next(size for size in repeats if alike(size, between=True))
    return ChannelRuns(run, period) if run < extent else None


# Numbers of 16 bits for each of 32.
_SHORT_LANES = 2
_LEAST_LANES = 4
_MOST_PARTS = 16
_ROWS_AND_COLUMNS = 2


class SerialRule(Rule[s_tir.Schedule]):
    """Leave a kernel as emission wrote it: each number from those before it, or from constants."""

    name = "serial"

    def schedule(self, func: tirx.PrimFunc, target: TargetDescription) -> s_tir.Schedule:
        """Accept loops in one block, running counts, and entries that read nothing."""
        try:
            graph = StageGraph(func)
        except NotElementwise:
            return s_tir.Schedule(func)
        if counts_on(graph) or not any(loads_of(stage.value) for stage in graph.stages.values()):
            return s_tir.Schedule(func)
        raise NotElementwise("no entry is computed from the one before it")


class RowsRule(Rule[s_tir.Schedule]):
    """Schedule kernels whose results are entries of rows, or numbers of rows."""

    name = "rows"

    def schedule(self, func: tirx.PrimFunc, target: TargetDescription) -> s_tir.Schedule:
        """See the module's strategy."""
        stages = RowStages(StageGraph(func))
        sch = s_tir.Schedule(func)
        inline_elementwise(sch, keep=stages.kept)
        for name in stages.columns:
            _sum_by_row(sch, name)
            _sum_columns(sch, name, target.vector_lanes)
        if stages.whole_rows:
            _compute_by_rows(sch, stages, target)
        elif not stages.columns:
            for output in output_blocks(sch):
                _parallel_rows(sch, output)
        for name in stages.entries:
            if stages.columns and not stages.whole_rows:
                vectorise_innermost(sch, sch.get_sblock(name), target.vector_lanes)
            else:
                _innermost(sch, sch.get_sblock(name), target)
        return sch


def _compute_by_rows(sch: s_tir.Schedule, stages: RowStages, target: TargetDescription) -> None:
    """Move what is computed from a row into one loop over rows."""
    lanes = target.vector_lanes
    by_lane = split_row_sums(sch, stages.sums, lanes) if target.explicit_row_sums else ()
    row = _parallel_rows(sch, sch.get_sblock(stages.anchor))
    if row is None:
        return
    results = _names(sch, output_blocks(sch))
    # Without vectors, groups of entries are reduced inside the loop that combines them.
    combined = {*stages.reductions.values()} if lanes == 1 else set()
    movable = {*stages.kept, *by_lane, *results} - {*stages.columns, *combined}
    for name in _gather(sch, row, stages.anchor, [n for n in block_names(sch) if n in movable]):
        _parallel_rows(sch, sch.get_sblock(name))
    vectorise_row_sums(sch, by_lane)
    if lanes == 1:
        unroll_row_reductions(sch, stages.reductions)


def _gather(sch: s_tir.Schedule, row: Loop, anchor: str, names: list[str]) -> list[str]:
    """Move blocks into a loop over rows: what reads blocks in it only, or is read there only.

    Returns
    -------
    list of str
        What had to stay outside.
    """
    inside, outside, before = {anchor}, [name for name in names if name != anchor], -1
    results = _names(sch, output_blocks(sch))
    while len(outside) != before:
        before = len(outside)
        for name in outside:
            block = sch.get_sblock(name)
            producers = {*_names(sch, sch.get_producers(block))}
            if producers and producers <= inside:
                sch.reverse_compute_at(block, row, preserve_unit_loops=True)
                inside.add(name)
        for name in reversed([name for name in outside if name not in inside]):
            block = sch.get_sblock(name)
            if name not in results and {*_names(sch, sch.get_consumers(block))} <= inside:
                sch.compute_at(block, row, preserve_unit_loops=True)
                inside.add(name)
        outside = [name for name in outside if name not in inside]
    return outside


def _names(sch: s_tir.Schedule, blocks: list[Block]) -> list[str]:
    return [sch.get(block).name_hint for block in blocks]


def _parallel_rows(sch: s_tir.Schedule, block: Block) -> Loop | None:
    """Run the rows of a block in parallel; return the loop over them, None where it has no rows."""
    loops = sch.get_loops(block)
    if len(loops) == 1:
        return None
    sch.parallel(loops[0])
    mark_row_loop(sch, loops[0])
    return loops[0]


def _sum_by_row(sch: s_tir.Schedule, name: str) -> None:
    """Sum what has several axes before its columns just before its only reader, row by row."""
    total = sch.get_sblock(name)
    readers = sch.get_consumers(total)
    loops = sch.get_loops(readers[0]) if len(readers) == 1 else []
    if len(loops) <= _ROWS_AND_COLUMNS or len(loops) != len(sch.get_loops(total)) - 1:
        return
    sch.parallel(loops[0] if extent(sch, loops[0]) > 1 else loops[1])
    sch.compute_at(total, loops[-2], preserve_unit_loops=True)


def _sum_columns(sch: s_tir.Schedule, name: str, lanes: int) -> None:
    """Sum rows, a vector of columns at a time."""
    total = sch.get_sblock(name)
    channel, row = sch.get_loops(total)[-2:]
    sch.reorder(row, channel)
    vectorise_innermost(sch, total, lanes)
    vectorise_innermost(sch, sch.decompose_reduction(total, row), lanes)


def _innermost(sch: s_tir.Schedule, block: Block, target: TargetDescription) -> None:
    """Vectorise the channels of a row, or unroll them where a register holds one number."""
    runs = channel_runs(sch.get(block))
    if runs is not None:
        _by_runs(sch, block, runs, target.vector_lanes)
    elif target.vector_lanes == 1:
        unroll_innermost(sch, block)
    else:
        vectorise_innermost(sch, block, target.vector_lanes)


def _by_runs(sch: s_tir.Schedule, block: Block, runs: ChannelRuns, lanes: int) -> None:
    """Vectorise within runs of channels, and decide while compiling what differs between them."""
    parts = runs.period // runs.run
    _, part, channel = sch.split(sch.get_loops(block)[-1], [None, parts, runs.run])
    if parts <= _MOST_PARTS:
        sch.unroll(part)
    if lanes == 1:
        unroll_innermost(sch, block)
        return
    # The largest power of two that divides a run: vectors of other lengths are taken apart.
    width = min(runs.run & -runs.run, _SHORT_LANES * lanes)
    if width >= _LEAST_LANES:
        _, channel = sch.split(channel, [None, width])
        sch.vectorize(channel)
