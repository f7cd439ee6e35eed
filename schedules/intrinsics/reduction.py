"""Horizontal reductions: the lanes of a vector become one number."""

from __future__ import annotations

from functools import cache

from .registration import Sources, register, sources_of

# Left to itself, LLVM's vectoriser reduces several rows at once with gathers.
_REDUCTION = """
@T.prim_func(s_tir=True)
def {which}(
    A: T.Buffer(({lanes},), "int32", offset_factor=1),
    C: T.Buffer((1,), "int32", offset_factor=1),
) -> None:
    with T.sblock("root"):
        T.reads(C[0], A[0:{lanes}])
        T.writes(C[0])
        {body}
"""

_REDUCED_BY_LOOP = """for i in T.serial(0, {lanes}):
            with T.sblock("update"):
                vi = T.axis.remap("R", [i])
                C[0] = {combined}"""

_COMBINED = {
    "max": ("T.max(C[0], {value})", "smax"),
    "sum": ("C[0] + {value}", "add"),
}


def reduction_sources(kind: str, lanes: int) -> Sources:
    """Text of the description and of the implementation of a horizontal reduction.

    Parameters
    ----------
    kind
        "max" or "sum".
    lanes
        Number of int32 lanes.
    """
    combined, operation = _COMBINED[kind]
    loop = _REDUCED_BY_LOOP.format(lanes=lanes, combined=combined.format(value="A[vi]"))
    value = (
        f'T.call_llvm_pure_intrin("int32", "llvm.vector.reduce.{operation}.v{lanes}i32", '
        f'A.vload([0], dtype="int32x{lanes}"))'
    )
    once = f"C[0] = {combined.format(value=value)}"
    return sources_of(_REDUCTION, loop, once, lanes=lanes)


@cache
def reduction_intrinsic(kind: str, lanes: int) -> str:
    """Register ``C[0] = combine(C[0], A[0:lanes])`` with TVM once; return its name.

    Parameters
    ----------
    kind
        "max" or "sum".
    lanes
        Number of int32 lanes.
    """
    return register(f"ibert.reduce_{kind}_{lanes}", reduction_sources(kind, lanes))
