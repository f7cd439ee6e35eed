"""Row operations on a processor whose registers hold one number each.

Nothing is gained by one pass over a row per operation there: what one pass stores, the next loads
again. So passes over a row become as few as the mathematics leaves, and the rows of a tile are
worked on together, which shares what depends on the column alone.
"""

from __future__ import annotations

from collections.abc import Mapping

from tvm import s_tir, tirx

from .rule import extent, largest_divisor

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


def fuse_row_passes(
    sch: s_tir.Schedule, reductions: Mapping[str, str | None], columns: int | None = None
) -> list[s_tir.schedule.LoopRV]:
    """Compute entries that wait for an earlier reduction in the pass of the one that reads them.

    A softmax so takes one pass for its maxima and one for exponentials and their sums.

    Parameters
    ----------
    sch
        Schedule of a kernel; (rows of the tile, columns) are the innermost loops of these blocks.
    reductions
        Names of the reductions over columns, in program order, with those of the entries that each
        reads and that wait for an earlier one; None where it reads no such entries.
    columns
        Columns of a block, where an outer loop goes over blocks, which those entries have already.

    Returns
    -------
    list of LoopRV
        The loops over blocks that were made here, of reductions that read no such entries.
    """
    over_blocks = []
    for name, entries in reductions.items():
        block = sch.get_sblock(name)
        if entries is None:
            column, _row = _columns_outside(sch, block)
            first = column
            if columns is not None:
                first, column = sch.split(column, [None, columns])
                over_blocks.append(first)
            sch.decompose_reduction(block, first)
            continue
        blocks = sch.get_loops(sch.get_sblock(entries))[-3]
        column, row = _columns_outside(sch, sch.get_sblock(entries))
        sch.reverse_compute_at(block, row, preserve_unit_loops=True)
        sch.decompose_reduction(block, column if columns is None else blocks)
        _unroll(sch, column, max(UNROLLED // extent(sch, row), 1))
    return over_blocks


def unroll_innermost(
    sch: s_tir.Schedule, block: s_tir.schedule.SBlockRV, times: int = UNROLLED
) -> None:
    """Unroll the last loop around `block` that is longer than 1 by a divisor up to `times`.

    A row of one number has no such loop of its own: those around it that are parallel, or unrolled,
    stay as they are.
    """
    loops = [loop for loop in sch.get_loops(block) if extent(sch, loop) > 1]
    if not loops or sch.get(loops[-1]).kind != tirx.ForKind.SERIAL:
        return
    _unroll(sch, loops[-1], times)


def _unroll(sch: s_tir.Schedule, loop: s_tir.schedule.LoopRV, times: int) -> None:
    length = extent(sch, loop)
    width = largest_divisor(length, times)
    if 1 < width < length:
        _, loop = sch.split(loop, [None, width])
    if width > 1:
        sch.unroll(loop)


def unroll_row_reductions(sch: s_tir.Schedule, reductions: Mapping[str, str | None]) -> None:
    """Unroll reductions over a row; reduce groups of entries inside the loop that combines them.

    Parameters
    ----------
    sch
        Schedule of a kernel whose numbers of a row are computed row by row.
    reductions
        Names of the reductions, and of the groups that each combines, where there are groups.
    """
    for name, groups in reductions.items():
        block = sch.get_sblock(name)
        loop = sch.get_loops(block)[-1]
        if groups is not None:
            part = sch.get_sblock(groups)
            sch.compute_at(part, loop, preserve_unit_loops=True)
            unroll_innermost(sch, part)
        sch.decompose_reduction(block, loop)
        if groups is None:
            unroll_innermost(sch, block)
