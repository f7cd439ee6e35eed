"""Steps that several schedule rules share: on the loops round a block, and on the rows of a tile.

On a processor whose registers hold one number each, nothing is gained by one pass over a row per
operation: what one pass stores, the next loads again. So passes over a row become as few as the
mathematics leaves (`fuse_row_passes`), and the rows of a tile are worked on together, which shares
what depends on the column alone.

LLVM vectorises a plain sum by the widest type in it. On 32-bit ARM a sum of 64 bits so takes two
squares of 16 bits at a time, and has no instruction for so few; `split_row_sums` sums by lanes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from tvm import s_tir, tirx

from .intrinsics.reduction import reduction_sources
from .intrinsics.registration import register
from .nodes import Block, Loop

# Left to itself, LLVM unrolls by four and interleaves all of it, for which there are no registers.
UNROLLED = 8
_MOST_LANES = 8  # sums of 64 bits
_PARTIAL = "_rf"  # what TVM calls the part of a reduction that is split off


def block_names(sch: s_tir.Schedule) -> list[str]:
    """Names of all blocks below the root, in program order."""
    root = sch.get_sblock("root", func_name="main")
    return [sch.get(block).name_hint for block in sch.get_child_blocks(root)]


def extent(sch: s_tir.Schedule, loop: Loop) -> int:
    """Constant extent of a loop."""
    return int(sch.get(loop).extent)


def largest_divisor(number: int, limit: int) -> int:
    """Largest divisor of `number` that does not exceed `limit`."""
    return next(divisor for divisor in range(min(number, limit), 0, -1) if number % divisor == 0)


def vectorise_innermost(sch: s_tir.Schedule, block: Block, lanes: int) -> None:
    """Vectorise the last loop around `block` by `lanes`, or whole where it is short and even.

    Whole registers go before as many lanes as divide the extent: of 48 columns, where `lanes` are
    32, 16 at a time rather than 24. A loop whose extent no vector of at least four lanes divides
    stays scalar: a predicated vector loop costs more than it gains, and such shapes are small.
    """
    loop = sch.get_loops(block)[-1]
    length = extent(sch, loop)
    width = largest_divisor(length, lanes)
    whole = math.gcd(length, lanes)
    if 2 * whole > width:
        width = whole
    if width < 4:
        return
    if width < length:
        _, loop = sch.split(loop, [None, width])
    sch.vectorize(loop)


def reduce_by_lane(sch: s_tir.Schedule, block: Block, steps: int | None = None) -> Loop | None:
    """Vectorise a reduction whose last spatial loop runs over the lanes of a vector.

    Returns
    -------
    LoopRV or None
        A loop over blocks of so many `steps`, where they are given.
    """
    lane, step = sch.get_loops(block)[-2:]
    blocks = None
    if steps is not None:
        blocks, step = sch.split(step, [None, steps])
        sch.reorder(blocks, step, lane)
    else:
        sch.reorder(step, lane)
    sch.vectorize(lane)
    zero = sch.decompose_reduction(block, step if blocks is None else blocks)
    sch.vectorize(sch.get_loops(zero)[-1])
    return blocks


def reduce_lanes(sch: s_tir.Schedule, block: Block, kind: str) -> None:
    """Reduce the lanes of a vector, the last loop around `block`, by "max" or "sum" at once."""
    lane = sch.get_loops(block)[-1]
    sch.decompose_reduction(block, lane)
    sch.tensorize(lane, register(reduction_sources(kind, extent(sch, lane))))


def output_blocks(sch: s_tir.Schedule) -> list[Block]:
    """Blocks that write an output buffer, in program order."""
    root = sch.get_sblock("root", func_name="main")
    return list(sch.get_output_blocks(root))


def inline_elementwise(sch: s_tir.Schedule, keep: set[str]) -> None:
    """Inline every intermediate block that is not in `keep` and writes no output."""
    outputs = {sch.get(block).name_hint for block in output_blocks(sch)}
    for name in block_names(sch):
        if name not in keep and name not in outputs:
            sch.compute_inline(sch.get_sblock(name))


def _columns_outside(sch: s_tir.Schedule, block: Block) -> tuple[Loop, Loop]:
    """Put the loop over a tile's rows, unrolled, into that over columns; return (column, row)."""
    row, column = sch.get_loops(block)[-2:]
    sch.reorder(column, row)
    sch.unroll(row)
    return column, row


def fuse_row_passes(
    sch: s_tir.Schedule, reductions: Mapping[str, str | None], columns: int | None = None
) -> list[Loop]:
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


def unroll_innermost(sch: s_tir.Schedule, block: Block) -> None:
    """Unroll the last loop around `block` that is longer than 1 by a divisor up to `UNROLLED`.

    A row of one number has no such loop of its own: those around it that are parallel, or unrolled,
    stay as they are.
    """
    loops = [loop for loop in sch.get_loops(block) if extent(sch, loop) > 1]
    if not loops or sch.get(loops[-1]).kind != tirx.ForKind.SERIAL:
        return
    _unroll(sch, loops[-1], UNROLLED)


def _unroll(sch: s_tir.Schedule, loop: Loop, times: int) -> None:
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


def split_row_sums(sch: s_tir.Schedule, sums: Sequence[str], lanes: int) -> tuple[str, ...]:
    """Split the sums over a row into one per lane; before their blocks are moved.

    Parameters
    ----------
    sch
        Schedule of a kernel.
    sums
        Names of the blocks that add up the entries of a row.
    lanes
        Lanes, at most; a row of a length that four or more do not divide keeps its sums.

    Returns
    -------
    tuple of str
        Names of the blocks that sum per lane, for `vectorise_row_sums`.
    """
    names = []
    for name in sums:
        channel = sch.get_loops(sch.get_sblock(name))[-1]
        width = largest_divisor(extent(sch, channel), min(lanes, _MOST_LANES))
        if width < 4:
            continue
        _step, lane = sch.split(channel, [None, width])
        sch.rfactor(lane, 1)
        names.append(name + _PARTIAL)
    return tuple(names)


def vectorise_row_sums(sch: s_tir.Schedule, names: tuple[str, ...]) -> None:
    """Vectorise what `split_row_sums` split, once the blocks are where they stay."""
    for name in names:
        block = sch.get_sblock(name)
        # The block's axes: the lane, the row (of which there is one here), the steps.
        lane, _row, step = sch.get_loops(block)[-3:]
        sch.reorder(step, lane)
        sch.vectorize(lane)
        zero = sch.decompose_reduction(block, step)
        sch.vectorize(sch.get_loops(zero)[-1])
