"""The register-tiled, tensorised matrix product that the linear and the attention rule share."""

from __future__ import annotations

import math
from dataclasses import replace

from tvm import s_tir, tirx

from ibert_tvm.targets import DotInstruction

from .intrinsics import microkernels, whole_tiles
from .intrinsics.dot import dot_intrinsic
from .intrinsics.matrix import drain_sources
from .intrinsics.microkernels import is_microkernel
from .intrinsics.registration import register
from .intrinsics.whole_tiles import multiplies_whole_tiles, whole_tile_sources
from .loops import extent, largest_divisor, vectorise_innermost
from .microkernel import multiply_by_microkernel
from .nodes import Block, Loop


def exact_instruction(dot: DotInstruction, func: tirx.PrimFunc, product: str) -> DotInstruction:
    """Instruction that is exact for the operands of a product.

    Emission lists the products both of whose factors may be -128; some instructions have another
    form for these.

    Parameters
    ----------
    dot
        The target's instruction.
    func
        The kernel.
    product
        Name of the product's block.
    """
    marked = func.attrs.get("ibert.both_minimum", ())
    if dot.full_range and product in marked:
        return replace(dot, name=dot.full_range)
    return dot


def depth_argument(dot: DotInstruction) -> int | None:
    """Place of the depth in calls of a microkernel; None of an instruction without."""
    if is_microkernel(dot):
        return microkernels.DEPTH_ARGUMENT
    return whole_tiles.DEPTH_ARGUMENT if multiplies_whole_tiles(dot) else None


def rows_argument(dot: DotInstruction) -> int | None:
    """Place of the rows in calls for whole tiles; None of an instruction without."""
    return whole_tiles.ROWS_ARGUMENT if multiplies_whole_tiles(dot) else None


def tile_matrix_product(
    sch: s_tir.Schedule,
    block: Block,
    dot: DotInstruction,
    tile: tuple[int, int] | None = None,
    unroll: int = 1,
    depth_block: int | None = None,
    interleaved: bool = False,
) -> Loop | None:
    """Schedule the innermost (rows, columns, depth) loops around a reduction block.

    Rows are one register tile already; columns are a multiple of the instruction's lanes and depth
    of its depth (emission pads them). The loop order becomes column tiles, depth, then the unrolled
    tile of rows x vectors, each entry one intrinsic. Without an instruction the innermost columns
    are vectorised.

    Parameters
    ----------
    sch
        Schedule.
    block
        Block ``C[..., m, n] += A[..., m, k] * B[..., n // lanes, k // depth, n % lanes, k %
        depth]``.
    dot
        The instruction. If it multiplies several rows, A must be a buffer of the kernel's own,
        since its rows are interleaved where they are made.
    tile
        Rows and vectors of a smaller tile than the kernel's.
    unroll
        Steps of the depth that are written out.
    depth_block
        Entries of the depth that an outer loop goes over at a time, a multiple of what the
        instruction takes.
    interleaved
        Whether another product reads the same activations and was scheduled before.

    Returns
    -------
    LoopRV or None
        The loop over blocks of the depth, where there is one.
    """
    if is_microkernel(dot):
        return multiply_by_microkernel(sch, block, dot, depth_block)
    if multiplies_whole_tiles(dot):
        return _multiply_at_once(sch, block, dot, depth_block)
    drain = _interleave_rows(sch, block, dot, not interleaved) if dot.rows > 1 else None
    rows, columns, depth = sch.get_loops(block)[-3:]
    vectors, lane = sch.split(columns, [None, dot.lanes])
    groups = math.gcd((depth_block or extent(sch, depth)) // dot.depth, dot.groups)
    chunks, inner = sch.split(depth, [None, groups * dot.depth])
    width = largest_divisor(extent(sch, vectors), tile[1] if tile else dot.tile_vectors)
    tiles, vector = sch.split(vectors, [None, width])
    if tile is not None:
        outer, rows = sch.split(rows, [None, largest_divisor(extent(sch, rows), tile[0])])
        sch.reorder(outer, tiles)
    first = lane
    if drain is not None:
        rows, first = sch.split(rows, [None, dot.rows])
    # Outermost what there is more of: the other operand stays in registers meanwhile.
    tile_loops = (vector, rows) if dot.tile_rows < dot.tile_vectors else (rows, vector)
    sch.reorder(tiles, chunks, *tile_loops, *([first] if drain is not None else []), lane, inner)
    sch.unroll(rows)
    sch.unroll(vector)
    if drain is not None:
        _schedule_drain(sch, drain, tiles, dot)
    intrinsic = dot_intrinsic(dot, groups)
    if intrinsic is None:
        sch.reorder(inner, lane)
        sch.vectorize(lane)
    blocks = None
    if depth_block is not None:
        blocks, chunks = sch.split(chunks, [None, depth_block // (groups * dot.depth)])
    zero = sch.decompose_reduction(block, chunks if blocks is None else blocks)
    zeroed = sch.get_loops(zero)[-3 if drain is None else -4 :]
    for loop in zeroed[:-1]:
        sch.unroll(loop)
    sch.vectorize(zeroed[-1])
    if intrinsic is not None:
        sch.tensorize(first, intrinsic)
    unroll = max(unroll, math.gcd(extent(sch, chunks), dot.unroll))
    if unroll > 1:
        _, step = sch.split(chunks, [None, unroll])
        sch.unroll(step)
    return blocks


def _multiply_at_once(
    sch: s_tir.Schedule, block: Block, dot: DotInstruction, depth_block: int | None
) -> Loop | None:
    """Make one call of the whole tile, over the depth or a block of it."""
    rows, columns, depth = sch.get_loops(block)[-3:]
    blocks = None
    if depth_block is not None:
        blocks, depth = sch.split(depth, [None, depth_block])
        sch.reorder(blocks, rows, columns, depth)
    sizes = tuple(extent(sch, loop) for loop in (rows, columns, depth))
    adds = blocks is not None or not dot.sets
    if adds:
        zero = sch.decompose_reduction(block, rows if blocks is None else blocks)
        vectorise_innermost(sch, zero, dot.lanes)
    first = rows if sizes[0] > 1 else columns
    sch.tensorize(first, register(whole_tile_sources(dot, *sizes, adds=adds)))
    return blocks


def _interleave_rows(
    sch: s_tir.Schedule, block: Block, dot: DotInstruction, operand: bool
) -> Block:
    """Lay activations, if `operand`, and accumulators out as the instruction takes them.

    Returns
    -------
    SBlockRV
        The block that brings accumulators into rows.
    """
    rows, depth = dot.rows, dot.depth
    if operand:
        sch.transform_layout(
            block,
            ("read", 0),
            lambda *index: [
                *index[:-2],
                index[-2] // rows,
                index[-1] // depth,
                index[-2] % rows,
                index[-1] % depth,
            ],
        )
    drain = sch.cache_write(block, 0, "global")
    sch.transform_layout(
        block,
        ("write", 0),
        lambda *index: [
            *index[:-2],
            index[-2] // rows,
            index[-1] // rows,
            index[-2] % rows,
            index[-1] % rows,
        ],
    )
    return drain


def _schedule_drain(sch: s_tir.Schedule, drain: Block, tiles: Loop, dot: DotInstruction) -> None:
    """Bring the accumulators of a tile into rows as soon as they are complete."""
    sch.reverse_compute_at(drain, tiles, preserve_unit_loops=True)
    rows, columns = sch.get_loops(drain)[-2:]
    rows, pair = sch.split(rows, [None, dot.rows])
    vectors, lane = sch.split(columns, [None, dot.lanes])
    sch.reorder(rows, vectors, pair, lane)
    sch.unroll(rows)
    sch.unroll(vectors)
    sch.tensorize(pair, register(drain_sources(dot)))
