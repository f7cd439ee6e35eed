"""Row operations on a processor whose registers hold one number each.

Nothing is gained by one pass over a row per operation there: what one pass stores, the next loads
again. So passes over a row become as few as the mathematics leaves, and the rows of a tile are
worked on together, which shares what depends on the column alone.
"""

from __future__ import annotations

from tvm import s_tir

from .rule import block_names, extent

EXPONENTIAL = "exponential"
ROW_MAX = "row_max"
ROW_SUM = "row_sum"


def _columns_outside(
    sch: s_tir.Schedule, block: s_tir.schedule.SBlockRV
) -> tuple[s_tir.schedule.LoopRV, s_tir.schedule.LoopRV]:
    """Put the loop over a tile's rows, unrolled, into that over columns; return (column, row)."""
    row, column = sch.get_loops(block)[-2:]
    sch.reorder(column, row)
    sch.unroll(row)
    return column, row


def fuse_softmax_passes(sch: s_tir.Schedule) -> None:
    """Compute exponentials and their sums in one pass, after one that finds the maxima.

    Expects the blocks of emission's softmax with (rows of the tile, columns) as their innermost
    loops, and reductions that go over columns directly.

    Parameters
    ----------
    sch
        Schedule of a kernel with a softmax; without one nothing happens.
    """
    present = set(block_names(sch))
    if not {EXPONENTIAL, ROW_MAX, ROW_SUM} <= present:
        return
    column, _row = _columns_outside(sch, sch.get_sblock(ROW_MAX))
    sch.decompose_reduction(sch.get_sblock(ROW_MAX), column)
    column, row = _columns_outside(sch, sch.get_sblock(EXPONENTIAL))
    total = sch.get_sblock(ROW_SUM)
    sch.reverse_compute_at(total, row, preserve_unit_loops=True)
    sch.decompose_reduction(total, column)


def unroll_innermost(sch: s_tir.Schedule, block: s_tir.schedule.SBlockRV, times: int) -> None:
    """Unroll the last loop around `block` by the largest divisor up to `times`."""
    loop = sch.get_loops(block)[-1]
    length = extent(sch, loop)
    width = next(size for size in range(min(times, length), 0, -1) if length % size == 0)
    if 1 < width < length:
        _, loop = sch.split(loop, [None, width])
    if width > 1:
        sch.unroll(loop)
