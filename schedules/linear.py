"""Linear layers: the packed 8-bit matrix product with its fused epilogue.

Strategy
--------
1. Inline the epilogue into the blocks that write results. Where it reads two products, both sides
   of a gate, their loops over tiles become one.
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
from .loops import extent, inline_elementwise, largest_divisor, output_blocks, vectorise_innermost
from .microkernel import schedule_linear, widen_panel
from .nodes import Block, Loop
from .products import MatrixProduct, linear_products
from .row_guard import ROW_COUNT, mark_inner_row_loop, mark_row_loop
from .rule import Rule
from .stages import NotElementwise
from .tensorised import exact_instruction, rows_argument, tile_matrix_product
from .tiles import LinearTile, tile_of
from .weight_prefetch import mark_panel_loop

# Row tiles, at most, for which a panel of half bytes is widened once: a task each.
_WIDENED_FOR = 32
_PANEL_BYTES = 32 * 1024


class LinearRule(Rule[s_tir.Schedule]):
    """Schedule kernels with one matrix product, of rows and columns."""

    name = "linear"

    def schedule(self, func: tirx.PrimFunc, target: TargetDescription) -> s_tir.Schedule:
        """See the module's strategy."""
        products = linear_products(func)
        if not products:
            raise NotElementwise("the kernel is no matrix product of rows and columns")
        product = products[0]
        dot = exact_instruction(target.dot, func, product.name)
        sch = s_tir.Schedule(func)
        if is_microkernel(dot):
            return schedule_linear(sch, func, product, dot)
        copied = product.lhs if "ibert.lhs_copied" in func.attrs else None
        names = [one.name for one in products]
        widened = [one.rhs.name for one in products if one.rhs is not None]
        inline_elementwise(sch, keep={*names, *widened, *([] if copied is None else [copied.name])})
        tile = tile_of(func, LinearTile) or default_tile(func, target, product)
        marks = [_order_tiles(sch, sch.get_sblock(name), tile, dot) for name in names]
        if len(names) > 1:
            sch.merge(*(_innermost(sch, sch.get_sblock(name)) for name in names))
        block = sch.get_sblock(names[0])
        parallel = sch.get_loops(block)[0]
        sch.parallel(parallel)
        argument = rows_argument(dot) if _is_plain(tile) else None
        mark_row_loop(sch, parallel, *marks[0], argument=argument)
        if target.prefetches_weights and tile.prefetch and (widened or _is_plain(tile)):
            _tile, count, _repeats = marks[0]
            reader = sch.get_sblock(widened[0]) if widened else block
            mark_panel_loop(
                sch, parallel, reader, tile.vectors, count, len(names), widened=bool(widened)
            )
        for name in widened:
            widen_panel(sch, sch.get_sblock(name), parallel, dot)
        if widened and tile.row_block > 1 and not tile.rows_outermost and ROW_COUNT in func.attrs:
            mark_inner_row_loop(sch, _innermost(sch, block), product.sizes[0], tile.rows)
        around_tile = len(sch.get_loops(block)) - 3
        for output in output_blocks(sch):
            sch.reverse_compute_at(output, _innermost(sch, block))
            # A tile of one row and one column has no loop of its own: the last is that over tiles.
            loops = sch.get_loops(output)[around_tile:]
            if loops:
                if argument is not None and tile.rows > 1 and ROW_COUNT in func.attrs:
                    mark_inner_row_loop(sch, loops[0], product.sizes[0])
                vectorise_innermost(sch, output, target.vector_lanes)
        registers = (tile.rows, tile.vectors) if tile_of(func, LinearTile) else None
        interleaved = False
        for name in names:
            exact = exact_instruction(target.dot, func, name)
            tile_matrix_product(
                sch, sch.get_sblock(name), exact, registers, tile.unroll, interleaved=interleaved
            )
            interleaved = True
        if copied is not None:
            copy = sch.get_sblock(copied.name)
            sch.parallel(sch.get_loops(copy)[0])
            mark_row_loop(sch, sch.get_loops(copy)[0])
            # Interleaved rows (`tile_matrix_product`) have that many entries side by side.
            run = dot.depth if dot.rows > 1 else 4 * target.vector_lanes
            vectorise_innermost(sch, copy, run)
        return sch


def default_tile(
    func: tirx.PrimFunc, target: TargetDescription, product: MatrixProduct
) -> LinearTile:
    """Decisions on a kernel that nobody tuned.

    Parameters
    ----------
    func
        The kernel; emission padded its rows to whole tiles.
    target
        What to schedule for.
    product
        What it multiplies. All rows pass over a panel that the kernel widens itself.
    """
    rows, dot = int(func.attrs["ibert.row_tile"]), target.dot
    padded_rows, columns, depth = product.sizes
    vectors, together = dot.tile_vectors, 1
    if product.rhs is not None:
        together = largest_divisor(padded_rows // rows, _WIDENED_FOR)
        if target.system != "linux":  # memory is scarce, and there is no cache to fill
            vectors = min(vectors, max(1, _PANEL_BYTES // (dot.lanes * depth)))
    return LinearTile(rows, largest_divisor(columns // dot.lanes, vectors), row_block=together)


def _is_plain(tile: LinearTile) -> bool:
    """Whether a task is one tile, and columns are outermost."""
    return (tile.row_block, tile.column_block, tile.rows_outermost) == (1, 1, 0)


def _innermost(sch: s_tir.Schedule, block: Block) -> Loop:
    """Innermost loop over tiles round a product."""
    return sch.get_loops(block)[-4]


def _order_tiles(
    sch: s_tir.Schedule, block: Block, tile: LinearTile, dot: DotInstruction
) -> tuple[int, int, int]:
    """Put the loops over tasks, one loop, and over the tiles of a task round those of a tile.

    Returns
    -------
    tuple of int
        What `mark_row_loop` is to say of the loop over tasks: rows, tiles and repeats.
    """
    rows, columns, depth = sch.get_loops(block)
    row_tiles, row = sch.split(rows, [None, tile.rows])
    column_tiles, column = sch.split(columns, [None, dot.lanes * tile.vectors])
    if _is_plain(tile):
        count = extent(sch, row_tiles)
        sch.reorder(column_tiles, row_tiles, row, column, depth)
        sch.fuse(column_tiles, row_tiles)
        return tile.rows, count, 1
    row_blocks, row_tile = sch.split(row_tiles, [None, tile.row_block])
    column_blocks, column_tile = sch.split(column_tiles, [None, tile.column_block])
    count, repeats = extent(sch, row_blocks), extent(sch, column_blocks)
    blocks, each = (row_blocks, column_blocks), (row_tile, column_tile)
    if not tile.rows_outermost:
        blocks, each, repeats = blocks[::-1], each[::-1], 1
    sch.reorder(*blocks, *each, row, column, depth)
    sch.fuse(*blocks)
    return tile.rows * tile.row_block, count, repeats
