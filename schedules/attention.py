"""Attention: QK^T, masked i-softmax and PV of one head, a block of rows at a time.

Strategy
--------
1. Heads of all batch rows run in parallel.
2. Per head, K and V are packed for the dot-product instruction (emission lays the packed operands
out),
   Q is brought to the type that the instruction's broadcast operand has.
3. Per block of rows: scores in a small buffer, row maximum, exponentials as bytes, row sum, PV, and
the
   division by the row sum in the requantisation. Nothing of size sequence x sequence exists.
"""

from __future__ import annotations

from tvm import s_tir, tirx

from ibert_tvm.targets import DotInstruction, TargetDescription

from .intrinsics.microkernels import is_microkernel
from .packing import pack_operands
from .row_guard import mark_sequence_loop, mark_token_loop, mark_token_store
from .rule import (
    Rejection,
    block_names,
    extent,
    kernel_name,
    output_blocks,
    reduce_by_lane,
    reduce_lanes,
    vectorise_innermost,
)
from .scalar_rows import fuse_softmax_passes
from .tensorised import exact_instruction, tile_matrix_product
from .tiles import AttentionTile, tile_of

# Blocks of emission's attention kernel, in program order; a mode has some of them.
PER_HEAD: tuple[str, ...] = (
    "ones",
    "valid",
    "q_operand",
    "k_packed",
    "k_sum",
    "key_offset",
    "v_packed",
    "v_sum",
)
PER_ROWS: tuple[str, ...] = (
    "score_products",
    "scores",
    "row_max_lanes",
    "row_max",
    "exponential",
    "row_sum_lanes",
    "row_sum",
    "row_bits",
    "row_factor",
    "probability",
    "context",
)
QUERIES = "q_operand"
ROWS = "attended_rows"
ELEMENTWISE = (
    "valid",
    "q_operand",
    "key_offset",
    "scores",
    "exponential",
    "row_bits",
    "probability",
    ROWS,
)
LANES = {"row_max": "max", "row_sum": "sum"}
# A head's depth is short: LLVM unrolls it, and keeps what the queries of the tile broadcast for all
# keys. With more rows that does not fit the registers.
SCORE_TILE = (4, 2)
# The same for vectors of four lanes and 32 registers: eight broadcasts per query.
FEW_QUERIES = (2, 4)
UNROLLED_DEPTH = 32
PRODUCTS = ("k_sum", "v_sum", "score_products", "context")


class AttentionRule:
    """Schedule kernels of kind ``attention``."""

    name = "attention"

    def apply(self, func: tirx.PrimFunc, target: TargetDescription) -> s_tir.Schedule | Rejection:
        """See the module's strategy."""
        if kernel_name(func) != "attention":
            return Rejection(self.name, f"the kernel is {kernel_name(func)!r}, not 'attention'")
        sch = s_tir.Schedule(func)
        outputs = [sch.get(block).name_hint for block in output_blocks(sch)]
        named = {*PER_HEAD, *PER_ROWS, ROWS, *outputs}
        for name in block_names(sch):
            if name not in named:
                sch.compute_inline(sch.get_sblock(name))
        if "row_bits" in block_names(sch):
            # An addition costs less than storing and loading the sum.
            sch.compute_inline(sch.get_sblock("scores"))
        present = set(block_names(sch))

        batch, head, rows, _columns = sch.get_loops(sch.get_sblock(ROWS))
        per_sequence, tile = extent(sch, head), int(func.attrs["ibert.row_tile"])
        heads = sch.fuse(batch, head)
        sch.parallel(heads)
        mark_sequence_loop(sch, heads, per_sequence)
        row_tiles, _row = sch.split(rows, [None, tile])
        mark_token_loop(sch, row_tiles, tile)
        per_rows, per_head = PER_ROWS, PER_HEAD
        if is_microkernel(target.dot):
            # Widened, the queries of a head take memory that a microcontroller may not have.
            per_rows, per_head = (
                (QUERIES, *PER_ROWS),
                tuple(name for name in PER_HEAD if name != QUERIES),
            )
        for names, loop in ((per_rows, row_tiles), (per_head, heads)):
            for name in reversed(names):
                if name in present:
                    sch.compute_at(sch.get_sblock(name), loop, preserve_unit_loops=True)
        for name in outputs:
            output = sch.get_sblock(name)
            sch.reverse_compute_at(output, row_tiles, preserve_unit_loops=True)
            mark_token_store(sch, output)
            vectorise_innermost(sch, output, target.vector_lanes)
        # Interleaved rows of an operand lie in runs of that many entries.
        run = target.dot.depth if target.dot.rows > 1 else target.vector_lanes
        for name in ELEMENTWISE:
            if name in present:
                vectorise_innermost(sch, sch.get_sblock(name), min(run, target.vector_lanes))
        for name, kind in LANES.items():
            if f"{name}_lanes" in present:
                reduce_by_lane(sch, sch.get_sblock(f"{name}_lanes"))
                reduce_lanes(sch, sch.get_sblock(name), kind)
        if target.vector_lanes == 1:
            fuse_softmax_passes(sch)
        dot = target.dot
        pack_operands(sch, dot, whole=bool(func.attrs["ibert.whole_tiles"]))
        depth = extent(sch, sch.get_loops(sch.get_sblock("score_products"))[-1])
        tiles = product_tiles(func, dot, depth)
        for name in PRODUCTS:
            # Where the instruction has no depth, values are summed without a row of ones.
            if name in present and (name != "v_sum" or "ones" in present):
                exact = exact_instruction(dot, func, name)
                tile_matrix_product(sch, sch.get_sblock(name), exact, tiles.get(name))
        return sch


def product_tiles(
    func: tirx.PrimFunc, dot: DotInstruction, depth: int
) -> dict[str, tuple[int, int]]:
    """Rows and vectors of the register tiles that are not the kernel's own, by block."""
    tuned = tile_of(func, AttentionTile)
    if tuned is not None:
        return {
            "score_products": (tuned.score_rows, tuned.score_vectors),
            "context": (tuned.context_rows, tuned.context_vectors),
        }
    if dot.rows > 1:
        return {}  # what the instruction takes is loaded as it is
    if dot.groups == 1:
        return {"score_products": SCORE_TILE}
    # As long as LLVM unrolls a head's depth, it keeps the broadcast queries as above.
    return {"score_products": FEW_QUERIES} if depth <= UNROLLED_DEPTH else {}
