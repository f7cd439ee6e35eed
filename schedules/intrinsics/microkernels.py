"""Matrix products by microkernels: functions in C that keep a tile of accumulators in registers.

One call adds the products of all of the depth, ``C[n, m] += sum_k A[m, k] B[n, k]``, for the rows
and columns of a tile. The operands lie as the function reads them (`targets/microkernels`); columns
of the result are outermost, so that a tile's accumulators lie together.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from ibert_tvm.targets import DotInstruction

from .registration import Sources, register, sources_of

_PRODUCT = """
@T.prim_func(s_tir=True)
def {which}(
    A: T.Buffer({a_shape}, "{lhs}", offset_factor=1),
    B: T.Buffer({b_shape}, "{rhs}", offset_factor=1),
    C: T.Buffer(({lanes}, {rows}), "int32", offset_factor=1),
) -> None:
    with T.sblock("root"):
        T.reads(C[0:{lanes}, 0:{rows}], A[{a_region}], B[{b_region}])
        T.writes(C[0:{lanes}, 0:{rows}])
        {body}
"""

_BY_LOOPS = """for {loops} in T.grid({extents}):
            with T.sblock("update"):
                {axes} = T.axis.remap("{kinds}", [{loops}])
                C[{c_index}] = C[{c_index}] + {a} * T.cast(B[{b_index}], "int32")"""

_BY_CALL = """T.evaluate(
            T.call_extern(
                "int32",
                "{function}",
                T.address_of(A[{a_start}]),
                T.address_of(B[{b_start}]),
                T.address_of(C[0, 0]),
                {depth},
            )
        )"""

_WIDENING = """
@T.prim_func(s_tir=True)
def {which}(
    A: T.Buffer(({quads}, {lanes}, 4), "int8", offset_factor=1),
    C: T.Buffer(({quads}, {lanes}, 2, 2), "int16", offset_factor=1),
) -> None:
    with T.sblock("root"):
        T.reads(A[0:{quads}, 0:{lanes}, 0:4])
        T.writes(C[0:{quads}, 0:{lanes}, 0:2, 0:2])
        {body}
"""

_WIDENED_BY_LOOPS = """for {loops} in T.grid({extents}):
            with T.sblock("update"):
                {axes} = T.axis.remap("{kinds}", [{loops}])
                C[{q}, vj, vi % 2, vi // 2] = T.cast(A[{q}, vj, vi], "int16")"""

_WIDENED_BY_CALL = """T.evaluate(
            T.call_extern(
                "int32",
                "ibert_mk_sxtb16",
                T.address_of(A[0, 0, 0]),
                T.address_of(C[0, 0, 0, 0]),
                {words},
            )
        )"""


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
_BY_WORDS = Operands(
    lhs=lambda row, k: [k, row],
    lhs_shape=lambda rows, depth: (depth, rows),
    lhs_index="vk, vi",
    rhs_shape=lambda columns, depth: (depth, columns, 1),
    rhs_index="vk, vj, 0",
)

DEPTH_ARGUMENT = 4
"""Place in the call of what says over how many entries it multiplies."""

_OPERANDS = {"smlad": _BY_HALVES, "mla": _BY_WORDS, "muls": _BY_WORDS}


def is_microkernel(dot: DotInstruction) -> bool:
    """Whether matrix products of an instruction are calls of a microkernel."""
    return dot.name in _OPERANDS


def microkernel_operands(dot: DotInstruction) -> Operands:
    """Layout of the operands of an instruction for which `is_microkernel` holds."""
    return _OPERANDS[dot.name]


def _nest(axes: dict[str, int]) -> dict[str, str]:
    """Parts of a loop nest in TVMScript, and "0" for the variable of a loop that there is not.

    A loop of one iteration is none, to TVM.
    """
    loops = [name for name, extent in axes.items() if extent > 1]
    return {
        "loops": ", ".join(loops),
        "extents": ", ".join(str(axes[name]) for name in loops),
        "axes": ", ".join(f"v{name}" for name in loops),
        "kinds": "".join("R" if name == "k" else "S" for name in loops),
        **{f"v{name}": "0" for name in axes if name not in loops},
    }


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
    operands = _OPERANDS[dot.name]
    a_shape, b_shape = operands.lhs_shape(rows, depth), operands.rhs_shape(dot.lanes, depth)
    nest = _nest({"i": rows, "j": dot.lanes, "k": depth})

    def at(text: str) -> str:
        return re.sub(r"v[ijk]", lambda match: nest.get(match.group(), match.group()), text)

    entry = f"A[{at(operands.lhs_index)}]"
    sizes = {
        **nest,
        "lanes": dot.lanes,
        "rows": rows,
        "depth": depth,
        "a": entry if dot.lhs_dtype == "int32" else f'T.cast({entry}, "int32")',
        "b_index": at(operands.rhs_index),
        "c_index": at("vj, vi"),
        "a_start": ", ".join("0" for _ in a_shape),
        "b_start": ", ".join("0" for _ in b_shape),
        "function": f"ibert_mk_{dot.name}_{rows}x{dot.lanes}",
    }
    shape = {
        "a_shape": a_shape,
        "b_shape": b_shape,
        "lhs": dot.lhs_dtype,
        "rhs": dot.rhs_dtype,
        "a_region": ", ".join(f"0:{size}" for size in a_shape),
        "b_region": ", ".join(f"0:{size}" for size in b_shape),
    }
    loops, call = _BY_LOOPS.format(**sizes), _BY_CALL.format(**sizes)
    return sources_of(_PRODUCT, loops, call, **shape, **sizes)


@cache
def microkernel_intrinsic(dot: DotInstruction, rows: int, depth: int) -> str:
    """Register `microkernel_sources` with TVM once; return the intrinsic's name."""
    name = f"ibert.{dot.name}_{rows}x{dot.lanes}_{depth}"
    return register(name, microkernel_sources(dot, rows, depth))


def widening_sources(lanes: int, depth: int) -> Sources:
    """Text of the description and of the implementation of widening a column tile's weights.

    ``C[q, j, i % 2, i // 2] = A[q, j, i]``: bytes become halves, in the order of SXTB16.
    """
    shape = {"quads": depth // 4, "lanes": lanes}
    nest = _nest({"q": depth // 4, "j": lanes, "i": 4})
    loops = _WIDENED_BY_LOOPS.format(**nest, q=nest.get("vq", "vq"))
    call = _WIDENED_BY_CALL.format(words=depth // 4 * lanes)
    return sources_of(_WIDENING, loops, call, **shape)


@cache
def widening_intrinsic(lanes: int, depth: int) -> str:
    """Register `widening_sources` with TVM once; return the intrinsic's name."""
    return register(f"ibert.sxtb16_{lanes}x{depth}", widening_sources(lanes, depth))
