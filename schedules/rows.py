"""Kernels that work row by row or entry by entry: LayerNorm, pooling, embedding, the rest.

Strategy
--------
1. Read the stages (`ibert_tvm.schedules.row_stages`) and inline those that need not be kept.
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

from tvm import s_tir, tirx

from ibert_tvm.targets import TargetDescription

from .channel_runs import ChannelRuns, channel_runs
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
from .nodes import Block, Loop
from .row_guard import mark_row_loop
from .row_stages import RowStages, counts_on
from .rule import Rule
from .stages import NotElementwise, StageGraph, loads_of

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
