"""LayerNorm and the like on a GPU: a row stays in registers from its sums to its results.

Strategy
--------
1. A warp works on a row, several warps where rows are few or long; each thread has runs of
   neighbouring channels of it, which it loads once.
2. Sums over the row: over the channels of a thread, then over the threads by exchange of
   registers. Sums that do not wait for each other go together.
3. What follows from the sums (mean, root, reciprocal) is computed by every thread; what of it is
   a result is stored by one. Maxima over the row go as sums do.
4. The entries of all results of a run, from the registers, packed and stored.

The arithmetic is that of the kernel's stages (`ibert_tvm.relay_passes.emit`).
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import tirx

from ibert_tvm.targets import Gpu

from ..row_guard import rows_in_use, with_blocks
from ..rule import GpuRule
from ..stages import NotElementwise, StageDefinition, StageGraph
from .row_statistics import RowScalars
from .runs import Loads, Results, RunOfChannels
from .statements import WARP, guarded, launch, sequence, thread

# Channels that a thread takes at once, best first: 16 bytes of int16, and results of 8 bytes.
_WIDTHS = (8, 4, 2, 1)
_MOST_WARPS = 32
# Instructions of a thread for an entry of a row, for a run of entries (loads and stores count
# several times), for the row itself, and for its sum over each warp: what `row_tile` compares.
_ENTRY = 17
_RUN = 24
_WARP_SUM = 4
_ROW = 140
# Warps that a scheduler can switch between before it is busy all the time.
_WAITING = 2
_SCHEDULERS = 4
# Blocks of fewer warps leave places of a multiprocessor empty, where there are enough of them.
_BLOCK_WARPS = 4
# Entries of a row that a thread holds, at most; each takes several registers.
_MOST_HELD = 32
# Up to so many entries, constants of channels are loaded before the sums: it hides their latency.
_MOST_EARLY = 16


@dataclass(frozen=True)
class RowTile:
    """How rows are shared out.

    Attributes
    ----------
    width
        Neighbouring channels that a thread takes at once.
    warps
        Warps of a row.
    rows
        Rows of a block; 1 if a row has several warps.
    """

    width: int
    warps: int
    rows: int

    def steps(self, channels: int) -> int:
        """Runs of channels of a thread."""
        return -(-channels // (self.width * WARP * self.warps))


def row_tile(rows: int, channels: int, multiprocessors: int) -> RowTile:
    """Choose how rows are shared out.

    Parameters
    ----------
    rows, channels
        Of the kernel.
    multiprocessors
        Of the device: every one should have warps to switch between.

    Returns
    -------
    RowTile
        With the fewest idle threads, and of these the widest accesses.
    """

    def time(width: int, warps: int) -> int:
        # A warp's instructions, times how many warps take turns, or wait for their own results.
        held = RowTile(width, warps, 1).steps(channels) * width
        turns = -(-rows * warps // (_SCHEDULERS * multiprocessors))
        own = _ENTRY * held + _RUN * (held // width) + _ROW + _WARP_SUM * (warps - 1)
        return own * (_WAITING + turns)

    candidates = [
        (width, warps)
        for width in _WIDTHS
        for warps in range(1, _MOST_WARPS + 1)
        if channels % width == 0 and RowTile(width, warps, 1).steps(channels) * width <= _MOST_HELD
    ]
    if not candidates:
        raise NotElementwise(f"a block does not hold {channels} channels in registers")
    width, warps = min(candidates, key=lambda tile: (time(*tile), -tile[0]))
    together = 1
    while warps == 1 and together < _BLOCK_WARPS and rows >= 2 * together * multiprocessors:
        together *= 2
    return RowTile(width, warps, together)


class RowsRule(GpuRule):
    """Write kernels with sums over the channels of a row, and results for each channel."""

    name = "rows"

    def write(self, func: tirx.PrimFunc, gpu: Gpu) -> tirx.PrimFunc:
        """See the module's strategy."""
        graph = StageGraph(func)
        rows, channels, scalars, results = _parts(graph)
        tile = row_tile(rows, channels, gpu.multiprocessors)
        used = rows_in_use(func)
        if used is None and rows % tile.rows:
            used = tirx.const(rows, "int32")
        body = _kernel(graph, rows, used, channels, scalars, results, tile)
        return with_blocks(func, body, 1, tile.rows)


def _parts(graph: StageGraph) -> tuple[int, int, list[StageDefinition], list[StageDefinition]]:
    """Rows, channels, stages with one number per row, and results; or why it is no such kernel."""
    outputs = [stage for stage in graph.stages.values() if stage.buffer in graph.outputs]
    results = [stage for stage in outputs if not _is_number(stage)]
    shapes = {stage.extents for stage in results}
    if len(shapes) != 1 or len(results[0].extents) != 2:
        raise NotElementwise("the results are not all of one shape [rows, channels]")
    if any(stage.extents[0] != results[0].extents[0] for stage in outputs):
        raise NotElementwise("the results have different numbers of rows")
    rows, channels = results[0].extents
    scalars = [stage for stage in graph.stages.values() if stage.extents == (rows,)]
    if not any(stage.reduced for stage in scalars):
        raise NotElementwise("there is no sum over the channels of a row")
    if any(stage.reduced for stage in outputs):
        raise NotElementwise("a result is a reduction")
    return rows, channels, scalars, results


def _is_number(stage: StageDefinition) -> bool:
    """Whether a stage has one entry to a row, [rows, 1]."""
    return len(stage.extents) == 2 and stage.extents[1] == 1


def _stored_numbers(
    graph: StageGraph, numbers: RowScalars, row: tirx.Expr, lane: tirx.Var
) -> list[tirx.Stmt]:
    """Store results that are numbers of the row, by its first thread."""
    zero, stored = tirx.const(0, "int32"), []
    for stage in graph.stages.values():
        if stage.buffer in graph.outputs and _is_number(stage):
            evaluation = graph.evaluate(numbers.leaves)
            value = evaluation.value(stage, [row, zero])
            store = evaluation.before(tirx.BufferStore(stage.buffer, value, [row, zero]))
            stored.append(guarded(lane == 0, store))
    return stored


def _kernel(
    graph: StageGraph,
    rows: int,
    used: tirx.Expr | None,
    channels: int,
    scalars: list[StageDefinition],
    results: list[StageDefinition],
    tile: RowTile,
) -> tirx.Stmt:
    block, lane, line = thread("blockIdx.x"), thread("threadIdx.x"), thread("threadIdx.y")
    blocks, lanes = -(-rows // tile.rows), WARP * tile.warps
    row = block * tile.rows + line if tile.rows > 1 else block
    threads = {block: blocks, line: tile.rows, lane: lanes}
    runs, steps = channels // tile.width, tile.steps(channels)
    run = RunOfChannels(
        tile.width,
        lambda step: (step * lanes + lane) * tile.width,
        steps,
        threads,
        (lambda step: step * lanes + lane < runs) if runs % lanes else None,
    )
    kept = Loads(run, kept=True)
    leaves = kept.leaves(graph)
    numbers = RowScalars(graph, run, row, leaves, tile.warps)
    numbers.add(scalars, channels)

    early = tile.width * steps <= _MOST_EARLY
    late = kept if early else Loads(run, kept=False)
    known = dict(numbers.leaves)
    for buffer in graph.parameters:
        if not early and not kept.holds(buffer):
            known[buffer] = late.leaf(buffer)
    outputs = Results(graph.evaluate(known), run, [row], results)
    body = [
        *kept.declarations,
        *([] if early else late.declarations),
        *outputs.declarations,
        run.each_step(sequence(kept.copies)),
        *numbers.statements,
        *_stored_numbers(graph, numbers, row, lane),
        run.each_step(sequence([*([] if early else late.copies), *outputs.entries])),
    ]
    inside = None if used is None else row < used
    # Shared memory belongs to the block: it is declared outside of whatever is conditional.
    whole = sequence([*numbers.scratch, guarded(inside, tirx.SeqStmt(body))])
    if tile.rows == 1:
        del threads[line]
    return launch(whole, threads)
