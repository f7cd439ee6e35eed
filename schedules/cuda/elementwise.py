"""Kernels on a GPU that compute each entry from a few others: a thread for a run of channels.

Strategy
--------
Runs of all rows are counted through, so that blocks are full whatever a row's length. A thread
loads what it reads 16 bytes at a time, where that lies next to each other (table rows that ids
select included), computes its entries and stores them likewise.
"""

from __future__ import annotations

import math

from tvm import tirx

from ibert_tvm.targets import Gpu

from ..row_guard import rows_in_use, with_blocks
from ..rule import GpuRule
from ..stages import NotElementwise, StageDefinition, StageGraph
from .runs import Loads, Results, RunOfChannels, itemsize
from .statements import guarded, launch, sequence, thread

_WIDTHS = (16, 8, 4, 2, 1)
# Bytes of the widest and of the narrowest operand that a thread takes at once, at most.
_MOST_WIDE, _MOST_NARROW = 32, 16
_BLOCK = 128
# Threads of a multiprocessor below which narrower runs, and more threads, hide latency better.
_ENOUGH_THREADS = 256
_LEAST_WIDTH = 4


def run_width(entries: int, channels: int, itemsizes: list[int], multiprocessors: int) -> int:
    """Choose how many neighbouring channels a thread takes.

    Parameters
    ----------
    entries
        Of an output.
    channels
        Of a row.
    itemsizes
        Bytes of an entry of each operand and result.
    multiprocessors
        Of the device.

    Returns
    -------
    int
        A divisor of `channels`.
    """
    limit = min(_MOST_WIDE // max(itemsizes), _MOST_NARROW // min(itemsizes))
    fitting = [width for width in _WIDTHS if channels % width == 0 and width <= limit] or [1]
    for width in fitting:
        busy = entries // width >= _ENOUGH_THREADS * multiprocessors
        if busy or width <= _LEAST_WIDTH:
            return width
    return fitting[-1]


class ElementwiseRule(GpuRule):
    """Write kernels without reductions, whose results have one shape."""

    name = "elementwise"

    def write(self, func: tirx.PrimFunc, gpu: Gpu) -> tirx.PrimFunc:
        """See the module's strategy."""
        graph = StageGraph(func)
        results = results_of(graph)
        for stage in graph.stages.values():
            if stage.reduced:
                raise NotElementwise(f"stage {stage.name!r} is a reduction")
        body, runs = _kernel(graph, results, rows_in_use(func), gpu.multiprocessors)
        return with_blocks(func, body, runs, _BLOCK)


def results_of(graph: StageGraph) -> list[StageDefinition]:
    """Stages that write a kernel's results, in program order.

    Raises
    ------
    NotElementwise
        If results have several shapes, or one is written in another order than it is computed.
    """
    results = [stage for stage in graph.stages.values() if stage.buffer in graph.outputs]
    shapes = {tuple(int(size) for size in stage.buffer.ty.shape) for stage in results}
    if len(shapes) != 1 or any(stage.extents not in shapes for stage in results):
        raise NotElementwise("the results are not all computed entry by entry in one shape")
    return results


def _kernel(
    graph: StageGraph,
    results: list[StageDefinition],
    used: tirx.Expr | None,
    multiprocessors: int,
) -> tuple[tirx.Stmt, int]:
    """The kernel's body, and how many runs of channels a row has."""
    *leading, channels = results[0].extents
    rows = math.prod(leading)
    sizes = [itemsize(str(stage.buffer.ty.dtype)) for stage in results]
    sizes += [
        itemsize(str(buffer.ty.dtype))
        for buffer in graph.parameters
        if int(buffer.ty.shape[-1]) == channels
    ]
    width = run_width(rows * channels, channels, sizes, multiprocessors)
    runs = rows * (channels // width)
    block, place = thread("blockIdx.x"), thread("threadIdx.x")
    blocks = -(-runs // _BLOCK)
    threads = min(_BLOCK, runs)
    count = block * threads + place
    row = tirx.floordiv(count, channels // width)
    extents = {block: blocks, place: threads}
    run = RunOfChannels(
        width, lambda step: tirx.floormod(count, channels // width) * width, 1, extents
    )
    loads = Loads(run, kept=False)
    leaves = loads.leaves(graph)
    indices = unravelled(row, leading)
    outputs = Results(graph.evaluate(leaves), run, indices, results)
    body = [*loads.declarations, *outputs.declarations]
    work = run.each_step(sequence([*loads.copies, *outputs.entries]))
    inside = count < runs if runs % threads else None
    body.append(guarded(inside if used is None else row < used, work))
    return launch(sequence(body), extents), channels // width


def unravelled(row: tirx.Expr, sizes: list[int]) -> list[tirx.Expr]:
    """Indices of the row that has so many before it."""
    indices: list[tirx.Expr] = []
    for size in reversed(sizes[1:]):
        indices.insert(0, tirx.floormod(row, size))
        row = tirx.floordiv(row, size)
    return [row, *indices] if sizes else []
