"""Sums over a row by vector lanes, where the compiler's own vectoriser does badly.

LLVM vectorises a plain sum by the widest type in it. On 32-bit ARM a sum of 64 bits so takes two
squares of 16 bits at a time, and has no instruction for so few.
"""

from __future__ import annotations

from tvm import s_tir

from .row_stages import RowStages
from .rule import extent, largest_divisor

_MOST_LANES = 8  # sums of 64 bits
_PARTIAL = "_rf"  # what TVM calls the part of a reduction that is split off


def split_row_sums(sch: s_tir.Schedule, stages: RowStages, lanes: int) -> tuple[str, ...]:
    """Split the sums over a row into one per lane; before their blocks are moved.

    Parameters
    ----------
    sch
        Schedule of a kernel.
    stages
        Its stages.
    lanes
        Lanes, at most; a row of a length that four or more do not divide keeps its sums.

    Returns
    -------
    tuple of str
        Names of the blocks that sum per lane, for `vectorise_row_sums`.
    """
    names = []
    for name in stages.sums:
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
