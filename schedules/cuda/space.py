"""What can be decided about a kernel on a GPU, and what a cost model can know of it beforehand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple

from tvm import tirx

from ibert_tvm.targets import Gpu

from ..products import linear_product
from ..stages import NotElementwise, StageGraph
from ..tiles import Tile
from . import attention_tile, gemm_tile
from .attention_operands import attention_sizes
from .attention_tile import AttentionSizes, AttentionTile
from .gemm_tile import GemmTile
from .linear import MatrixProduct, matrix_product

# The models are right about what is hopeless: what they take for so much slower than the best is
# not worth a trial, and of what is left so many are enough for any search.
_SLOWEST = 3.0
_MOST = 256

Features = Callable[[Tile], Sequence[float]]
"""Numbers that say how a kernel with some decisions will run."""


def gpu_tiles(func: tirx.PrimFunc, gpu: Gpu) -> Sequence[Tile]:
    """All decisions worth trying on a kernel.

    Parameters
    ----------
    func
        Unscheduled kernel.
    gpu
        What it is to be scheduled for.

    Returns
    -------
    sequence of Tile
        The rule's default first, then what the rule's model takes for fast; empty for kernels that
        are not tuned.
    """
    sizes = _sizes(func)
    if isinstance(sizes, MatrixProduct):
        size = (sizes.rows, sizes.columns, sizes.padded_depth)
        default = gemm_tile.choose_tile(*size, gpu)
        found = {t: gemm_tile.cycles(t, *size, gpu) for t in gemm_tile.candidates(*size, gpu)}
        limit = _SLOWEST * found[default]
        others = sorted((t for t in found if t != default), key=lambda tile: found[tile])
        return [default, *(tile for tile in others if found[tile] <= limit)][:_MOST]
    if isinstance(sizes, AttentionSizes):
        ranked = attention_tile.candidate_tiles(sizes, gpu)
        times = [attention_tile.cycles(tile, sizes, gpu) for tile in ranked]
        limit = _SLOWEST * min(times, default=0.0)
        return [t for t, time in zip(ranked, times, strict=True) if time <= limit][:_MOST]
    return []


def gpu_features(func: tirx.PrimFunc, gpu: Gpu) -> Features:
    """Say what a cost model is to know of the decisions on a kernel.

    Features of loops say nothing here: the loops of a product are inside of device functions.

    Parameters
    ----------
    func
        Unscheduled kernel, for which `gpu_tiles` has decisions.
    gpu
        What it is to be scheduled for.

    Returns
    -------
    callable
        Takes decisions; gives them as numbers, with what follows from them: threads, blocks and how
        many of them a multiprocessor has, shared memory, and the time that the rule's model gives.
    """
    sizes = _sizes(func)

    def features(tile: Tile) -> list[float]:
        if isinstance(tile, GemmTile) and isinstance(sizes, MatrixProduct):
            blocks = -(-sizes.rows // tile.block_rows) * -(-sizes.columns // tile.block_columns)
            size = (sizes.rows, sizes.columns, sizes.padded_depth)
            derived = [
                tile.threads,
                tile.accumulators,
                tile.registers(gpu.capability),
                tile.shared_bytes,
                blocks,
                -(-blocks // gpu.multiprocessors),
                gemm_tile.resident_blocks(tile, gpu.capability),
                gemm_tile.cycles(tile, *size, gpu),
            ]
        elif isinstance(tile, AttentionTile) and isinstance(sizes, AttentionSizes):
            blocks = sizes.batch * sizes.heads * -(-sizes.seq_len // tile.rows)
            derived = [
                tile.threads,
                tile.scores,
                tile.warp_keys,
                tile.shared_bytes(sizes),
                blocks,
                -(-blocks // gpu.multiprocessors),
                attention_tile.cycles(tile, sizes, gpu),
            ]
        else:
            raise ValueError(f"{tile} is no decision on this kernel")
        return [float(value) for value in (*astuple(tile), *derived)]

    return features


def _sizes(func: tirx.PrimFunc) -> MatrixProduct | AttentionSizes | None:
    """Sizes of a kernel that has decisions; None of any other."""
    try:
        graph = StageGraph(func)
        return matrix_product(graph) if linear_product(func) else attention_sizes(func, graph)
    except NotElementwise:
        return None  # no rule for tensor cores takes it
