"""Matrix products on processors without vectors: operands for a microkernel, and its calls.

Strategy of a linear layer
--------------------------
1. Rows in blocks. The activations of a block are widened once, in the order in which the
   microkernel loads those of a tile of rows.
2. Columns in tiles. Where the instruction takes widened weights, those of a column tile are widened
   once per block, so a block has several row tiles; otherwise it has one.
3. A call of the microkernel per tile multiplies over the whole depth.
4. The epilogue follows each column tile, channel by channel: what depends on the channel alone is
   loaded once for all rows of the block.
"""

from __future__ import annotations

from typing import Any

from tvm import s_tir, tirx

from ibert_tvm.targets import DotInstruction

from .intrinsics.microkernels import microkernel_operands, microkernel_sources, widening_sources
from .intrinsics.registration import register
from .intrinsics.widening import HALF, nibble_sources, widens_by_intrinsic
from .loops import extent, inline_elementwise, largest_divisor, output_blocks
from .nodes import Block, Loop
from .products import MatrixProduct
from .row_guard import mark_inner_row_loop, mark_row_loop

# Entries of each row that one iteration of a copy moves.
COPIED_ENTRIES = 4


def lay_out_operands(sch: s_tir.Schedule, block: Block, dot: DotInstruction, tile: int) -> None:
    """Store a product's operands and result as the microkernel has them.

    Parameters
    ----------
    sch
        Schedule.
    block
        Block ``C[..., m, n] += A[..., m, k] * B[..., n // lanes, k // depth, n % lanes, k %
        depth]``; A, B (unless it is stored as the instruction takes it) and C are intermediates.
    dot
        The instruction.
    tile
        Rows of a tile.
    """
    operands = microkernel_operands(dot)

    def activations(*index: Any) -> list[Any]:
        *outer, m, k = index
        return [*outer, m // tile, *operands.lhs(m % tile, k)]

    def weights(*index: Any) -> list[Any]:
        *outer, inner = index
        return [*outer, inner % 2, inner // 2]

    def accumulators(*index: Any) -> list[Any]:
        *outer, m, n = index
        return [*outer, m // tile, n, m % tile]

    sch.transform_layout(block, ("read", 0), activations)
    if dot.rhs_dtype == "int16":
        sch.transform_layout(block, ("read", 1), weights)
    sch.transform_layout(block, ("write", 0), accumulators)


def multiply_by_microkernel(
    sch: s_tir.Schedule, block: Block, dot: DotInstruction, depth_block: int | None = None
) -> Loop | None:
    """Make the product of one tile of rows calls of the microkernel.

    Parameters
    ----------
    sch
        Schedule.
    block
        Block as in `lay_out_operands`, inside of a loop over row tiles.
    dot
        The instruction.
    depth_block
        Entries of the depth that an outer loop goes over at a time.

    Returns
    -------
    LoopRV or None
        That loop, where there is one.
    """
    tile = extent(sch, sch.get_loops(block)[-3])
    lay_out_operands(sch, block, dot, tile)
    return call_microkernel(sch, block, dot, tile, depth_block)[1]


def call_microkernel(
    sch: s_tir.Schedule,
    block: Block,
    dot: DotInstruction,
    tile: int,
    depth_block: int | None = None,
) -> tuple[list[Loop], Loop | None]:
    """Make the innermost (rows, columns, depth) loops around a product calls of the microkernel.

    Parameters
    ----------
    sch
        Schedule.
    block
        The block, its operands laid out by `lay_out_operands`.
    dot
        The instruction.
    tile
        Rows of a tile; they divide the rows.
    depth_block
        As in `multiply_by_microkernel`.

    Returns
    -------
    tuple of list of LoopRV, and LoopRV or None
        The loops over row tiles, of zeros and of products, and that over blocks of the depth,
        where there is one.
    """
    rows, columns, depth = sch.get_loops(block)[-3:]
    row_tiles, *row = _tiles(sch, rows, tile)
    column_tiles, *column = _tiles(sch, columns, dot.lanes)
    blocks = None
    if depth_block is not None:
        blocks, depth = sch.split(depth, [None, depth_block])
    inside = [*row, *column, depth]
    sch.reorder(column_tiles, row_tiles, *([] if blocks is None else [blocks]), *inside)
    length = extent(sch, depth)
    around = len(sch.get_loops(block)) - len(inside) - (1 if blocks is None else 2)
    zeros = sch.decompose_reduction(block, column_tiles)
    if tile * dot.lanes * length > 1:
        sch.tensorize(inside[0], register(microkernel_sources(dot, tile, length)))
    return [sch.get_loops(zeros)[around], row_tiles], blocks


def _tiles(sch: s_tir.Schedule, loop: Loop, size: int) -> list[Loop]:
    """Split a loop into tiles; tiles of 1 have no loop inside, which tensorisation would see."""
    return [loop] if size == 1 else list(sch.split(loop, [None, size]))


def schedule_linear(
    sch: s_tir.Schedule, func: tirx.PrimFunc, product: MatrixProduct, dot: DotInstruction
) -> s_tir.Schedule:
    """Schedule a kernel with one matrix product; see the module's strategy.

    Parameters
    ----------
    sch
        Its schedule.
    func
        The kernel.
    product
        Its product, whose operands are copies or parameters.
    dot
        The instruction.
    """
    tile = int(func.attrs["ibert.row_tile"])
    copies = [stage.name for stage in (product.lhs, product.rhs) if stage is not None]
    inline_elementwise(sch, keep={product.name, *copies})
    block = sch.get_sblock(product.name)
    lay_out_operands(sch, block, dot, tile)
    rows, columns, _depth = sch.get_loops(block)
    together = int(func.attrs.get("ibert.row_block", tile))
    true_rows = extent(sch, sch.get_loops(output_blocks(sch)[0])[-2])
    several = together > tile
    width = dot.lanes * largest_divisor(extent(sch, columns) // dot.lanes, dot.tile_vectors)
    blocks, row = sch.split(rows, [None, together])
    column_tiles, column = sch.split(columns, [None, width])
    sch.reorder(blocks, column_tiles, row, column)
    sch.parallel(blocks)
    mark_row_loop(sch, blocks, together)
    for output in output_blocks(sch):
        sch.reverse_compute_at(output, column_tiles, preserve_unit_loops=True)
        inner_row, inner_column = sch.get_loops(output)[-2:]
        sch.reorder(inner_column, inner_row)
        if several:
            mark_inner_row_loop(sch, inner_row, true_rows)
    if product.lhs is not None:
        copy = sch.get_sblock(product.lhs.name)
        sch.compute_at(copy, blocks, preserve_unit_loops=True)
        row_tiles = _copy_by_tiles(sch, copy, tile)
        if several:
            mark_inner_row_loop(sch, row_tiles, true_rows, tile)
    if product.rhs is not None:
        copy = sch.get_sblock(product.rhs.name)
        if product.is_widened:
            widen_panel(sch, copy, column_tiles, dot)
        else:
            sch.compute_at(copy, column_tiles, preserve_unit_loops=True)
            *_, chunk, lane, _inner = sch.get_loops(copy)
            length = extent(sch, chunk) * dot.depth
            # A loop of one iteration is none, to tensorisation.
            first = chunk if length > dot.depth else lane
            sch.tensorize(first, register(widening_sources(dot.lanes, length)))
    over_tiles, _blocks = call_microkernel(sch, sch.get_sblock(product.name), dot, tile)
    if several:
        for loop in over_tiles:
            mark_inner_row_loop(sch, loop, true_rows, tile)
    return sch


def _copy_by_tiles(sch: s_tir.Schedule, copy: Block, tile: int) -> Loop:
    """Order the copy of activations as it is stored: a few entries of all rows of a tile.

    Returns
    -------
    LoopRV
        The loop over row tiles.
    """
    rows, depth = sch.get_loops(copy)[-2:]
    row_tiles, row = sch.split(rows, [None, tile])
    chunks, inner = sch.split(depth, [None, largest_divisor(extent(sch, depth), COPIED_ENTRIES)])
    sch.reorder(row_tiles, chunks, row, inner)
    sch.unroll(row)
    sch.unroll(inner)
    return row_tiles


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
