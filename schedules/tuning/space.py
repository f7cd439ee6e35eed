"""The decisions that a kernel allows on a target."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product as pairs

from tvm import tirx

from ibert_tvm.targets import DotInstruction, TargetDescription

from ..attention import product_tiles
from ..attention_stages import attention_products
from ..cuda.space import gpu_tiles
from ..linear import default_tile
from ..loops import largest_divisor
from ..products import linear_product
from ..tensorised import depth_argument
from ..tiles import AttentionTile, LinearTile, Tile, without_tile

# A register tile of many more accumulators than the default's spills; one of far fewer loads
# operands all the time.
_MOST_ACCUMULATORS = (5, 4)
_FEWEST_ACCUMULATORS = (1, 4)
_MOST_ROWS = 16
_ROW_BLOCKS = (1, 2, 4, 8)
_COLUMN_BLOCKS = (1, 2, 4)
_UNROLLS = (1, 2, 4)
Sizes = tuple[int, int, int]

# So few tasks would leave threads without work; the default has at least as many.
_FEWEST_TASKS = 8


def _divisors(number: int, limit: int) -> list[int]:
    return [divisor for divisor in range(1, min(number, limit) + 1) if number % divisor == 0]


def _accumulators(dot: DotInstruction) -> tuple[int, int]:
    """Fewest and most accumulators of a register tile that is worth trying."""
    default = dot.tile_rows * dot.tile_vectors
    fewest = max(1, default * _FEWEST_ACCUMULATORS[0] // _FEWEST_ACCUMULATORS[1])
    return fewest, max(2, default * _MOST_ACCUMULATORS[0] // _MOST_ACCUMULATORS[1])


def default_decisions(func: tirx.PrimFunc, target: TargetDescription) -> Tile | None:
    """What the rule decides on a kernel that nobody tuned; None where nothing is to be decided."""
    if target.gpu is not None:
        return next(iter(gpu_tiles(func, target.gpu)), None)
    dot = target.dot
    if target.system != "linux":
        return None  # nothing can be measured there, and microkernels decide for themselves
    product, both = linear_product(func), attention_products(func)
    if product is not None:
        return default_tile(func, target, product)
    if both is not None and depth_argument(dot) is None:
        scores, context = (one.sizes for one in both)
        rows = int(func.attrs["ibert.row_tile"])
        score, weigh = (
            tile or (rows, dot.tile_vectors)
            for tile in product_tiles(without_tile(func), dot, scores[2])
        )
        return AttentionTile(
            largest_divisor(rows, score[0]),
            largest_divisor(scores[1] // dot.lanes, score[1]),
            largest_divisor(rows, weigh[0]),
            largest_divisor(context[1] // dot.lanes, weigh[1]),
        )
    return None


def tile_space(func: tirx.PrimFunc, target: TargetDescription) -> list[Tile]:
    """All decisions worth trying on a kernel.

    Parameters
    ----------
    func
        Unscheduled kernel.
    target
        What it is to be scheduled for.

    Returns
    -------
    list of Tile
        The rule's default first; empty for kernels that are not tuned.
    """
    if target.gpu is not None:
        return list(gpu_tiles(func, target.gpu))
    default = default_decisions(func, target)
    if default is None:
        return []
    dot = target.dot
    product, both = linear_product(func), attention_products(func)
    others: list[Tile] = []
    if product is not None:
        others += _linear(product.sizes, dot, target.prefetches_weights)
    if both is not None:
        others += _attention(func, [one.sizes for one in both], dot)
    return [default, *(tile for tile in others if tile != default)]


def _linear(sizes: Sizes, dot: DotInstruction, prefetches: bool) -> list[LinearTile]:
    rows, columns, depth = sizes
    vectors, steps = columns // dot.lanes, depth // (dot.depth * dot.groups)
    fewest, most = _accumulators(dot)
    tiles = []
    for tile_rows, tile_vectors in pairs(
        _divisors(rows, max(_MOST_ROWS, dot.tile_rows)), _divisors(vectors, most)
    ):
        if tile_rows % dot.rows or not fewest <= tile_rows * tile_vectors <= most:
            continue
        row_tiles, column_tiles = rows // tile_rows, vectors // tile_vectors
        enough = min(_FEWEST_TASKS, row_tiles * column_tiles)
        for row_block, column_block, outermost, unroll in pairs(
            _ROW_BLOCKS, _COLUMN_BLOCKS, (0, 1), _UNROLLS
        ):
            if row_tiles % row_block or column_tiles % column_block or steps % unroll:
                continue
            if row_tiles * column_tiles < enough * row_block * column_block:
                continue
            if outermost and 1 in (row_tiles, column_tiles):
                continue  # the same order
            plain = (row_block, column_block, outermost) == (1, 1, 0)
            for prefetch in (1, 0) if prefetches and plain else (1,):
                tiles.append(
                    LinearTile(
                        tile_rows,
                        tile_vectors,
                        row_block,
                        column_block,
                        outermost,
                        unroll,
                        prefetch,
                    )
                )
    return tiles


def _attention(
    func: tirx.PrimFunc, sizes: Sequence[Sizes], dot: DotInstruction
) -> list[AttentionTile]:
    rows = int(func.attrs["ibert.row_tile"])
    scores, context = sizes
    _, most = _accumulators(dot)

    def registers(columns: int) -> list[tuple[int, int]]:
        return [
            (r, v)
            for r, v in pairs(_divisors(rows, rows), _divisors(columns // dot.lanes, most))
            if r % dot.rows == 0 and 2 <= r * v <= most
        ]

    both = pairs(registers(scores[1]), registers(context[1]))
    return [AttentionTile(*first, *second) for first, second in both]
