"""Row operations on a processor whose registers hold one number each.

Nothing is gained by one pass over a row per operation there: what one pass stores, the next loads
again. So passes over a row become as few as the mathematics leaves, and the rows of a tile are
worked on together, which shares what depends on the column alone.
"""

from __future__ import annotations

from tvm import s_tir

from .rule import block_names, extent, is_reduction, largest_divisor

EXPONENTIAL = "exponential"
ROW_MAX = "row_max"
ROW_SUM = "row_sum"
# Sums over the channels of a row, and those of groups of squares.
SUMS = ("sum", "square_sum", "squares")
SQUARE_GROUPS = "square_groups"
# Left to itself, LLVM unrolls by four and interleaves all of it, for which there are no registers.
UNROLLED = 8


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
    largest = sch.get_sblock(ROW_MAX)
    column, _row = _columns_outside(sch, largest)
    sch.decompose_reduction(largest, column)
    column, row = _columns_outside(sch, sch.get_sblock(EXPONENTIAL))
    total = sch.get_sblock(ROW_SUM)
    sch.reverse_compute_at(total, row, preserve_unit_loops=True)
    sch.decompose_reduction(total, column)
    _unroll(sch, column, max(UNROLLED // extent(sch, row), 1))


def unroll_innermost(
    sch: s_tir.Schedule, block: s_tir.schedule.SBlockRV, times: int = UNROLLED
) -> None:
    """Unroll the last loop around `block` that is longer than 1 by a divisor up to `times`."""
    loops = [loop for loop in sch.get_loops(block) if extent(sch, loop) > 1]
    if not loops:
        return
    _unroll(sch, loops[-1], times)


def _unroll(sch: s_tir.Schedule, loop: s_tir.schedule.LoopRV, times: int) -> None:
    length = extent(sch, loop)
    width = largest_divisor(length, times)
    if 1 < width < length:
        _, loop = sch.split(loop, [None, width])
    if width > 1:
        sch.unroll(loop)


def unroll_row_sums(sch: s_tir.Schedule) -> None:
    """Unroll the sums of a layer norm; sum groups of squares inside the loop that adds them.

    Parameters
    ----------
    sch
        Schedule of a layer norm whose statistics are computed row by row.
    """
    present = block_names(sch)
    for name in SUMS:
        if name not in present or not is_reduction(sch, name):
            continue
        block = sch.get_sblock(name)
        loop = sch.get_loops(block)[-1]
        grouped = name == "squares" and SQUARE_GROUPS in present
        if grouped:
            groups = sch.get_sblock(SQUARE_GROUPS)
            sch.compute_at(groups, loop, preserve_unit_loops=True)
            unroll_innermost(sch, groups)
        sch.decompose_reduction(block, loop)
        if not grouped:
            unroll_innermost(sch, block)
