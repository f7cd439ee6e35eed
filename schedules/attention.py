"""Attention: QK^T, masked i-softmax and PV of one head, a block of rows at a time.

Strategy
--------
1. Heads of all batch rows run in parallel.
2. Per head, K and V are packed for the dot-product instruction (emission lays the packed operands
out),
   Q is brought to the type that the instruction's broadcast operand has.
3. Per block of rows, over the keys that one of them may see (`ibert_tvm.schedules.key_blocks`):
scores in a small buffer, row maximum, exponentials as bytes, row sum, PV, and
the
   division by the row sum in the requantisation. Nothing of size sequence x sequence exists.
"""

from __future__ import annotations

import math
from dataclasses import replace

from tvm import s_tir, tirx

from ibert_tvm.targets import DotInstruction, TargetDescription

from .attention_stages import AttentionStages
from .intrinsics.microkernels import is_microkernel
from .key_blocks import (
    LARGEST_BLOCK,
    LARGEST_BLOCK_OF_CALLS,
    key_block,
    mark_key_loop,
    split_keys,
    split_sum,
    windowed,
)
from .loops import (
    extent,
    fuse_row_passes,
    inline_elementwise,
    largest_divisor,
    output_blocks,
    reduce_by_lane,
    reduce_lanes,
    vectorise_innermost,
)
from .packing import pack_operands
from .row_guard import mark_sequence_loop, mark_token_loop, mark_token_store
from .rule import Rule
from .stages import StageGraph
from .tensorised import depth_argument, exact_instruction, rows_argument, tile_matrix_product
from .tiles import AttentionTile, tile_of

# A head's depth is short: LLVM unrolls it, and keeps what the queries of the tile broadcast for all
# keys. With more rows that does not fit the registers.
SCORE_TILE = (4, 2)
# The same for vectors of four lanes and 32 registers: eight broadcasts per query.
FEW_QUERIES = (2, 4)
UNROLLED_DEPTH = 32
# The scores of so many queries and 512 keys take 32 KB.
MOST_QUERIES = 16


class AttentionRule(Rule[s_tir.Schedule]):
    """Schedule kernels of two matrix products, the second weighing by the scores of the first."""

    name = "attention"

    def schedule(self, func: tirx.PrimFunc, target: TargetDescription) -> s_tir.Schedule:
        """See the module's strategy."""
        stages = AttentionStages(StageGraph(func))
        sch, dot = s_tir.Schedule(func), target.dot
        outputs = [sch.get(block).name_hint for block in output_blocks(sch)]
        inline_elementwise(sch, keep=stages.kept)
        batch, head, rows, _columns = sch.get_loops(sch.get_sblock(stages.attended))
        per_sequence, tile = extent(sch, head), _row_tile(int(func.attrs["ibert.row_tile"]))
        heads = sch.fuse(batch, head)
        sch.parallel(heads)
        mark_sequence_loop(sch, heads, per_sequence)
        row_tiles, _row = sch.split(rows, [None, tile])
        mark_token_loop(sch, row_tiles, tile, argument=rows_argument(dot))
        per_rows, per_head = stages.per_rows, stages.per_head
        if is_microkernel(dot):
            # Widened, the queries of a head take memory that a microcontroller may not have.
            queries = stages.queries.name
            per_rows = [queries, *per_rows]
            per_head = [name for name in per_head if name != queries]
        keys = _blocks_of_keys(func, target, stages)
        if keys is not None and windowed(func):
            # Bytes with an offset are corrected by the sum of the values that they weigh.
            per_rows = [*stages.value_sums, *per_rows]
            per_head = [name for name in per_head if name not in stages.value_sums]
        for names, loop in ((per_rows, row_tiles), (per_head, heads)):
            for name in reversed(names):
                sch.compute_at(sch.get_sblock(name), loop, preserve_unit_loops=True)
        for name in outputs:
            output = sch.get_sblock(name)
            sch.reverse_compute_at(output, row_tiles, preserve_unit_loops=True)
            mark_token_store(sch, output)
            vectorise_innermost(sch, output, target.vector_lanes)
        # Interleaved rows of an operand lie in runs of that many entries.
        run = dot.depth if dot.rows > 1 else target.vector_lanes
        if keys is not None:
            for name in stages.by_key:
                split_keys(sch, sch.get_sblock(name), keys)
            products = {product.name for product in stages.products}
            for name in stages.value_sums:
                if name not in products:
                    split_sum(sch, sch.get_sblock(name), keys)
        for name in stages.elementwise:
            vectorise_innermost(sch, sch.get_sblock(name), min(run, target.vector_lanes))
        for name, by_lane in stages.lanes.items():
            steps = None if keys is None else keys // stages.graph.stages[by_lane].extents[-1]
            blocks = reduce_by_lane(sch, sch.get_sblock(by_lane), steps)
            if keys is not None and blocks is not None:
                mark_key_loop(sch, blocks, keys)
            reduce_lanes(sch, sch.get_sblock(name), stages.graph.stages[name].combine)
        if target.vector_lanes == 1:
            over_blocks = fuse_row_passes(sch, stages.reductions, keys)
            if keys is not None:
                for loop in over_blocks:
                    mark_key_loop(sch, loop, keys)
        whole = bool(func.attrs["ibert.whole_tiles"])
        dtype = str(stages.values.buffer.ty.dtype)
        pack_operands(sch, dot, stages.keys.name, stages.values.name, whole, dtype)
        both = (stages.scores.name, stages.context.name)
        tiles = dict(zip(both, product_tiles(func, dot, stages.scores.sizes[2]), strict=True))
        for product in sorted(stages.products, key=lambda product: product.name in both):
            exact = exact_instruction(dot, func, product.name)
            if dot.short and product is stages.context and dtype == "int16":
                exact = replace(exact, name=dot.short, rhs_dtype=dtype)
            block, registers = sch.get_sblock(product.name), tiles.get(product.name)
            depth = keys if product.name in (stages.context.name, *stages.value_sums) else None
            if keys is not None and product is stages.scores:
                split_keys(sch, block, keys, 2)
            blocks = tile_matrix_product(sch, block, exact, registers, depth_block=depth)
            if keys is not None and blocks is not None:
                mark_key_loop(sch, blocks, keys, depth_argument(dot))
        return sch


def _row_tile(rows: int) -> int:
    """Queries at a time, of a tile of so many rows: all, or a part whose scores take less cache."""
    part = largest_divisor(rows, MOST_QUERIES)
    return part if 2 * part >= MOST_QUERIES else rows


def _blocks_of_keys(
    func: tirx.PrimFunc, target: TargetDescription, stages: AttentionStages
) -> int | None:
    """Keys of a block that may be skipped."""
    lanes = (stages.graph.stages[name].extents[-1] for name in stages.lanes.values())
    step = math.lcm(target.dot.lanes, target.dot.depth, *lanes)
    calls = depth_argument(target.dot) is not None
    small = calls and (target.vector_lanes == 1 or windowed(func))
    largest = LARGEST_BLOCK_OF_CALLS if small else LARGEST_BLOCK
    return key_block(func, stages.scores.sizes[1], step, largest)


RegisterTile = tuple[int, int]
"""Rows and vectors."""


def product_tiles(
    func: tirx.PrimFunc, dot: DotInstruction, depth: int
) -> tuple[RegisterTile | None, RegisterTile | None]:
    """Register tiles of scores and context; None for the kernel's own."""
    tuned = tile_of(func, AttentionTile)
    if tuned is not None:
        return (
            (tuned.score_rows, tuned.score_vectors),
            (tuned.context_rows, tuned.context_vectors),
        )
    if dot.rows > 1:
        return None, None  # what the instruction takes is loaded as it is
    if dot.groups == 1:
        return SCORE_TILE, None
    # As long as LLVM unrolls a head's depth, it keeps the broadcast queries as above.
    return (FEW_QUERIES if depth <= UNROLLED_DEPTH else None), None
