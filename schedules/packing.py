"""Bringing K and V of a head into the layout of the dot-product instruction, by shuffles."""

from __future__ import annotations

from tvm import s_tir

from ibert_tvm.targets import DotInstruction

from .intrinsics.microkernels import is_microkernel
from .intrinsics.packing import (
    LOADED_BYTES,
    key_packing_sources,
    loaded_values,
    value_packing_sources,
    zipped_key_sources,
    zipped_value_sources,
)
from .intrinsics.registration import register
from .loops import extent, vectorise_innermost

# Lanes from which on a whole transposition is one shuffle.
_WIDE = 8


def pack_operands(
    sch: s_tir.Schedule,
    dot: DotInstruction,
    keys_name: str,
    values_name: str,
    whole: bool,
    dtype: str = "int8",
) -> None:
    """Schedule the blocks that copy K and V into packed form.

    Parameters
    ----------
    sch
        Schedule of an attention kernel.
    dot
        The instruction: packed operands are [blocks, chunks, lanes, depth].
    keys_name, values_name
        Names of the blocks.
    whole
        Whether sequence and head fill whole tiles. Otherwise the copies test every group of
        `depth` bytes and move it alone.
    dtype
        Of V.
    """
    if is_microkernel(dot):
        return  # one number at a time, as the loops have it
    keys, values = sch.get_sblock(keys_name), sch.get_sblock(values_name)
    if dot.depth == LOADED_BYTES:
        # Keys move by whole vectors; there is no shuffle that could transpose values.
        vectorise_innermost(sch, keys, dot.depth)
        return
    lanes, depth = dot.lanes, dot.depth
    block, chunk, _lane, _inner = sch.get_loops(values)[-4:]
    blocks = loaded_values(dtype) // lanes
    zipped = whole and depth > 1 and lanes < _WIDE
    if zipped and extent(sch, block) % blocks == 0:
        outer, block = sch.split(block, [None, blocks])
        sch.reorder(outer, chunk, block)
        sch.tensorize(block, register(zipped_value_sources(lanes, depth, dtype)))
    elif whole and depth > 1:
        intrinsic = register(value_packing_sources(lanes, depth, dtype))
        sch.tensorize(sch.get_loops(values)[-2], intrinsic)
    chunk, _lane, _inner = sch.get_loops(keys)[-3:]
    group = LOADED_BYTES // depth
    if whole and depth > 1 and extent(sch, chunk) % group == 0:
        _, chunk = sch.split(chunk, [None, group])
        sources = zipped_key_sources if zipped else key_packing_sources
        sch.tensorize(chunk, register(sources(lanes, depth)))
    else:
        vectorise_innermost(sch, keys, depth)
