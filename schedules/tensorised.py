"""The register-tiled, tensorised matrix product that the linear and the attention rule share."""

from __future__ import annotations

from tvm import s_tir

from targets import DotInstruction

from .intrinsics import dot_intrinsic
from .rule import extent, largest_divisor


def tile_matrix_product(
    sch: s_tir.Schedule,
    block: s_tir.schedule.SBlockRV,
    dot: DotInstruction,
    tile: tuple[int, int] | None = None,
) -> None:
    """Schedule the innermost (rows, columns, depth) loops around a reduction block.

    Rows are one register tile already; columns are a multiple of the instruction's lanes and depth
    of its depth (emission pads them). The loop order becomes column tiles, depth, then the unrolled
    tile of rows x vectors, each entry one instruction. Without an instruction the innermost columns
    are vectorised.

    Parameters
    ----------
    sch
        Schedule.
    block
        Block ``C[..., m, n] += A[..., m, k] * B[..., n // lanes, k // depth, n % lanes, k %
        depth]``.
    dot
        The instruction.
    tile
        Rows and vectors of a smaller tile than the kernel's.
    """
    rows, columns, depth = sch.get_loops(block)[-3:]
    vectors, lane = sch.split(columns, [None, dot.lanes])
    chunks, inner = sch.split(depth, [None, dot.depth])
    width = largest_divisor(extent(sch, vectors), tile[1] if tile else dot.tile_vectors)
    tiles, vector = sch.split(vectors, [None, width])
    if tile is not None:
        outer, rows = sch.split(rows, [None, largest_divisor(extent(sch, rows), tile[0])])
        sch.reorder(outer, tiles)
    sch.reorder(tiles, chunks, rows, vector, lane, inner)
    sch.unroll(rows)
    sch.unroll(vector)
    intrinsic = dot_intrinsic(dot)
    if intrinsic is None:
        sch.reorder(inner, lane)
        sch.vectorize(lane)
    zero = sch.decompose_reduction(block, chunks)
    for loop in sch.get_loops(zero)[-3:-1]:
        sch.unroll(loop)
    sch.vectorize(sch.get_loops(zero)[-1])
    if intrinsic is not None:
        sch.tensorize(lane, intrinsic.name)
