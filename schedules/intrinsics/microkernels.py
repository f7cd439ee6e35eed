"""Matrix products by microkernels: functions in C that keep a tile of accumulators in registers.

One call adds the products of all of the depth, ``C[n, m] += sum_k A[m, k] B[n, k]``, for the rows
and columns of a tile. The operands lie as the function reads them (`targets/microkernels`); columns
of the result are outermost, so that a tile's accumulators lie together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ibert_tvm.targets import DotInstruction

from .registration import Operand, Sources, called, nest, sources_of


@dataclass(frozen=True)
class Operands:
    """Where a microkernel finds entry k of a row or of a column.

    Attributes
    ----------
    lhs, rhs
        Index maps of an activation (row of the tile, k) and of a weight (column of the tile, k).
    lhs_shape, rhs_shape
        Shapes of a tile's operands, of (rows or columns, depth).
    lhs_index, rhs_index
        The index maps in TVMScript.
    """

    lhs: Callable[..., list[object]]
    lhs_shape: Callable[[int, int], tuple[int, ...]]
    lhs_index: str
    rhs_shape: Callable[[int, int], tuple[int, ...]]
    rhs_index: str


# As SXTB16 widens four bytes: entries 0 and 2, then 1 and 3.
_BY_HALVES = Operands(
    lhs=lambda row, k: [k // 4, row, k % 2, k % 4 // 2],
    lhs_shape=lambda rows, depth: (depth // 4, rows, 2, 2),
    lhs_index="vk // 4, vi, vk % 2, vk % 4 // 2",
    rhs_shape=lambda columns, depth: (depth // 4, columns, 2, 2),
    rhs_index="vk // 4, vj, vk % 2, vk % 4 // 2",
)
_BY_ROWS = Operands(
    lhs=lambda row, k: [k, row],
    lhs_shape=lambda rows, depth: (depth, rows),
    lhs_index="vk, vi",
    rhs_shape=lambda columns, depth: (depth, columns, 1),
    rhs_index="vk, vj, 0",
)

DEPTH_ARGUMENT = 4
"""Place in the call of what says over how many entries it multiplies."""

_OPERANDS = {
    "smlad": _BY_HALVES,
    **dict.fromkeys(("mla", "muls", "rv32m", "rv64m"), _BY_ROWS),
}


def is_microkernel(dot: DotInstruction) -> bool:
    """Whether matrix products of an instruction are calls of a microkernel."""
    return dot.name in _OPERANDS


def microkernel_operands(dot: DotInstruction) -> Operands:
    """Layout of the operands of an instruction for which `is_microkernel` holds."""
    return _OPERANDS[dot.name]


def microkernel_sources(dot: DotInstruction, rows: int, depth: int) -> Sources:
    """Text of the description and of the implementation of a tile's product.

    Parameters
    ----------
    dot
        The instruction; a tile has its lanes as columns.
    rows
        Rows of the tile.
    depth
        Products per accumulator, a multiple of ``dot.depth``; a tile has more than one in all.
    """
    layout = _OPERANDS[dot.name]
    operands = {
        "A": Operand(layout.lhs_shape(rows, depth), dot.lhs_dtype),
        "B": Operand(layout.rhs_shape(dot.lanes, depth), dot.rhs_dtype),
        "C": Operand((dot.lanes, rows), "int32"),
    }
    entry, weight = f"A[{layout.lhs_index}]", f"B[{layout.rhs_index}]"
    widened = entry if dot.lhs_dtype == "int32" else f'T.cast({entry}, "int32")'
    statement = f'C[vj, vi] = C[vj, vi] + {widened} * T.cast({weight}, "int32")'
    call = called(f"ibert_mk_{dot.name}_{rows}x{dot.lanes}", operands, depth)
    loops = nest(statement, i=rows, j=dot.lanes, k=depth)
    return sources_of(f"{dot.name}_{rows}x{dot.lanes}_{depth}", operands, loops, [call])


def widening_sources(lanes: int, depth: int) -> Sources:
    """Text of the description and of the implementation of widening a column tile's weights.

    ``C[q, j, i % 2, i // 2] = A[q, j, i]``: bytes become halves, in the order of SXTB16.
    """
    quads = depth // 4
    operands = {
        "A": Operand((quads, lanes, 4), "int8"),
        "C": Operand((quads, lanes, 2, 2), "int16"),
    }
    loops = nest(
        'C[vq, vj, vi % 2, vi // 2] = T.cast(A[vq, vj, vi], "int16")', q=quads, j=lanes, i=4
    )
    call = called("ibert_mk_sxtb16", operands, quads * lanes)
    return sources_of(f"sxtb16_{lanes}x{depth}", operands, loops, [call], accumulates=False)
