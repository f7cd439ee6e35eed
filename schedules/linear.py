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

from targets import TargetDescription

from .row_guard import mark_row_loop
from .rule import (
    Rejection,
    extent,
    inline_elementwise,
    kernel_name,
    largest_divisor,
    output_blocks,
    vectorise_innermost,
)
from .tensorised import tile_matrix_product
from .weight_prefetch import mark_panel_loop

ACCUMULATOR = "accumulator"
LHS = "lhs"


class LinearRule:
    """Schedule kernels of kind ``linear``."""

    name = "linear"

    def apply(self, func: tirx.PrimFunc, target: TargetDescription) -> s_tir.Schedule | Rejection:
        """See the module's strategy."""
        if kernel_name(func) != "linear":
            return Rejection(self.name, f"the kernel is {kernel_name(func)!r}, not 'linear'")
        dot = target.dot
        tile = int(func.attrs["ibert.row_tile"])
        sch = s_tir.Schedule(func)
        copies_lhs = "ibert.lhs_copied" in func.attrs
        inline_elementwise(sch, keep={ACCUMULATOR, *([LHS] if copies_lhs else [])})
        block = sch.get_sblock(ACCUMULATOR)
        rows, columns, depth = sch.get_loops(block)
        width = dot.lanes * largest_divisor(extent(sch, columns) // dot.lanes, dot.tile_vectors)
        row_tiles, row = sch.split(rows, [None, tile])
        tiles = extent(sch, row_tiles)
        column_tiles, column = sch.split(columns, [None, width])
        sch.reorder(column_tiles, row_tiles, row, column, depth)
        parallel = sch.fuse(column_tiles, row_tiles)
        sch.parallel(parallel)
        mark_row_loop(sch, parallel, tile, tiles)
        if target.prefetches_weights:
            mark_panel_loop(sch, parallel, block, width // dot.lanes, tiles)
        for output in output_blocks(sch):
            sch.reverse_compute_at(output, parallel)
            vectorise_innermost(sch, output, dot.lanes)
        tile_matrix_product(sch, sch.get_sblock(ACCUMULATOR), dot)
        if copies_lhs:
            copy = sch.get_sblock(LHS)
            sch.parallel(sch.get_loops(copy)[0])
            mark_row_loop(sch, sch.get_loops(copy)[0])
            vectorise_innermost(sch, copy, 4 * target.vector_lanes)
        return sch
