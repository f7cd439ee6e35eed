"""Weights in half bytes: a panel of columns is widened once for the rows that pass over it."""

from __future__ import annotations

from tvm import s_tir

from ibert_tvm.targets import DotInstruction

from .intrinsics.registration import register
from .intrinsics.widening import HALF, nibble_sources, widens_by_intrinsic
from .loops import extent
from .nodes import Block, Loop


def widen_panel(sch: s_tir.Schedule, block: Block, around: Loop, dot: DotInstruction) -> None:
    """Widen half bytes inside of a loop, as many as an iteration of it multiplies with.

    Parameters
    ----------
    sch
        Schedule.
    block
        What widens them, to [column blocks, depth blocks, lanes, depth].
    around
        The loop.
    dot
        The instruction.
    """
    sch.compute_at(block, around, preserve_unit_loops=True)
    chunk, lane, inner = sch.get_loops(block)[-3:]
    if widens_by_intrinsic(dot):
        sch.tensorize(chunk, register(nibble_sources(dot, extent(sch, chunk))))
        return
    # A group has one scale: it is loaded once for all of them.
    group, half, part = sch.split(chunk, [None, 2, HALF // dot.depth])
    sch.reorder(group, lane, half, part, inner)
    sch.unroll(part)
