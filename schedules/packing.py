"""Bringing K and V of a head into the layout of the dot-product instruction, by shuffles."""

from __future__ import annotations

from tvm import s_tir

from targets import DotInstruction

from .intrinsics import LOADED_BYTES, key_packing_intrinsic, value_packing_intrinsic
from .rule import extent, vectorise_innermost

KEYS = "k_packed"
VALUES = "v_packed"


def pack_operands(sch: s_tir.Schedule, dot: DotInstruction, whole: bool) -> None:
    """Schedule the blocks that copy K and V into packed form.

    Parameters
    ----------
    sch
        Schedule of an attention kernel.
    dot
        The instruction: packed operands are [blocks, chunks, lanes, depth].
    whole
        Whether sequence and head fill whole tiles. Otherwise the copies test every group of
        `depth` bytes and move it alone.
    """
    keys, values = sch.get_sblock(KEYS), sch.get_sblock(VALUES)
    chunk, _lane, _inner = sch.get_loops(keys)[-3:]
    group = LOADED_BYTES // dot.depth
    if whole and dot.depth > 1 and extent(sch, chunk) % group == 0:
        _, chunk = sch.split(chunk, [None, group])
        sch.tensorize(chunk, key_packing_intrinsic(dot.lanes, dot.depth))
    else:
        vectorise_innermost(sch, keys, dot.depth)
    if whole and dot.depth > 1:
        sch.tensorize(sch.get_loops(values)[-2], value_packing_intrinsic(dot.lanes, dot.depth))
