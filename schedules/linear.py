"""Linear layers: the packed 8-bit matrix product with its fused epilogue.

Strategy
--------
1. Inline the epilogue into the blocks that write results.
2. Columns in tiles of ``tile_vectors`` vectors, rows in the tile that emission chose and padded to;
   column tiles outermost, so that one packed weight panel stays in cache while all rows pass over
   it.
3. Tiles run in parallel; each accumulates in registers over the whole depth, one instruction per
entry.
4. The epilogue (bias, requantisation, activation, residual) runs on the tile before it leaves the
   registers, vectorised along channels.
"""

from __future__ import annotations

from tvm import s_tir, tirx

from ibert_tvm.targets import DotInstruction, TargetDescription

from .intrinsics.microkernels import is_microkernel
from .microkernel import schedule_linear
from .products import linear_product
from .row_guard import mark_row_loop
from .rule import (
    Rule,
    extent,
    inline_elementwise,
    largest_divisor,
    output_blocks,
    vectorise_innermost,
)
from .stages import NotElementwise
from .tensorised import exact_instruction, tile_matrix_product
from .tiles import LinearTile, tile_of
from .weight_prefetch import mark_panel_loop


class LinearRule(Rule[s_tir.Schedule]):
    """Schedule kernels with one matrix product, of rows and columns."""

    name = "linear"

    def schedule(self, func: tirx.PrimFunc, target: TargetDescription) -> s_tir.Schedule:
        """See the module's strategy."""
        product = linear_product(func)
        if product is None:
            raise NotElementwise("the kernel is no matrix product of rows and columns")
        dot = exact_instruction(target.dot, func, product.name)
        sch = s_tir.Schedule(func)
        if is_microkernel(dot):
            return schedule_linear(sch, func, product, dot)
        copied = product.lhs if "ibert.lhs_copied" in func.attrs else None
        inline_elementwise(sch, keep={product.name, *([] if copied is None else [copied.name])})
        block = sch.get_sblock(product.name)
        rows, columns, depth = sch.get_loops(block)
        tuned = tile_of(func, LinearTile)
        tile = tuned or default_tile(func, dot, extent(sch, columns) // dot.lanes)
        width = dot.lanes * tile.vectors
        row_tiles, row = sch.split(rows, [None, tile.rows])
        tiles = extent(sch, row_tiles)
        column_tiles, column = sch.split(columns, [None, width])
        parallel = _order_tiles(sch, tile, (row_tiles, column_tiles), (row, column, depth))
        if target.prefetches_weights and tile.prefetch and _is_plain(tile):
            mark_panel_loop(sch, parallel, block, tile.vectors, tiles)
        innermost = sch.get_loops(block)[-4]
        for output in output_blocks(sch):
            sch.reverse_compute_at(output, innermost)
            vectorise_innermost(sch, output, target.vector_lanes)
        registers = (tile.rows, tile.vectors) if tuned else None
        tile_matrix_product(sch, sch.get_sblock(product.name), dot, registers, tile.unroll)
        if copied is not None:
            copy = sch.get_sblock(copied.name)
            sch.parallel(sch.get_loops(copy)[0])
            mark_row_loop(sch, sch.get_loops(copy)[0])
            # Interleaved rows (`tile_matrix_product`) have that many entries side by side.
            run = dot.depth if dot.rows > 1 else 4 * target.vector_lanes
            vectorise_innermost(sch, copy, run)
        return sch


def default_tile(func: tirx.PrimFunc, dot: DotInstruction, vectors: int) -> LinearTile:
    """Decisions on a kernel that nobody tuned.

    Parameters
    ----------
    func
        The kernel; emission padded its rows to whole tiles.
    dot
        The instruction.
    vectors
        Vectors of columns that the kernel has.
    """
    rows = int(func.attrs["ibert.row_tile"])
    return LinearTile(rows, largest_divisor(vectors, dot.tile_vectors))


def _is_plain(tile: LinearTile) -> bool:
    """Whether a task is one tile, and columns are outermost."""
    return (tile.row_block, tile.column_block, tile.rows_outermost) == (1, 1, 0)


def _order_tiles(
    sch: s_tir.Schedule,
    tile: LinearTile,
    tiles: tuple[s_tir.schedule.LoopRV, s_tir.schedule.LoopRV],
    inside: tuple[s_tir.schedule.LoopRV, ...],
) -> s_tir.schedule.LoopRV:
    """Order the loops over row and column tiles; the parallel loop over tasks comes first.

    Returns
    -------
    LoopRV
        The parallel loop.
    """
    row_tiles, column_tiles = tiles
    if _is_plain(tile):
        count = extent(sch, row_tiles)
        sch.reorder(column_tiles, row_tiles, *inside)
        parallel = sch.fuse(column_tiles, row_tiles)
        sch.parallel(parallel)
        mark_row_loop(sch, parallel, tile.rows, count)
        return parallel
    row_blocks, row_tile = sch.split(row_tiles, [None, tile.row_block])
    column_blocks, column_tile = sch.split(column_tiles, [None, tile.column_block])
    rows, columns = extent(sch, row_blocks), extent(sch, column_blocks)
    blocks, each = (row_blocks, column_blocks), (row_tile, column_tile)
    if not tile.rows_outermost:
        blocks, each = blocks[::-1], each[::-1]
    sch.reorder(*blocks, *each, *inside)
    parallel = sch.fuse(*blocks)
    sch.parallel(parallel)
    repeats = columns if tile.rows_outermost else 1
    mark_row_loop(sch, parallel, tile.rows * tile.row_block, rows, repeats)
    return parallel
