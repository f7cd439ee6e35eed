"""Horizontal reductions: the lanes of a vector become one number."""

from __future__ import annotations

from .registration import Operand, Sources, nest, sources_of

_COMBINED = {"max": ("T.max(C[0], {value})", "smax"), "sum": ("C[0] + {value}", "add")}


def reduction_sources(kind: str, lanes: int) -> Sources:
    """Text of both functions of ``C[0] = combine(C[0], A[0:lanes])``.

    Left to itself, LLVM's vectoriser reduces several rows at once with gathers.

    Parameters
    ----------
    kind
        "max" or "sum".
    lanes
        Number of int32 lanes.
    """
    combined, operation = _COMBINED[kind]
    value = (
        f'T.call_llvm_pure_intrin("int32", "llvm.vector.reduce.{operation}.v{lanes}i32", '
        f'A.vload([0], dtype="int32x{lanes}"))'
    )
    return sources_of(
        f"reduce_{kind}_{lanes}",
        {"A": Operand((lanes,), "int32"), "C": Operand((1,), "int32")},
        nest(f"C[0] = {combined.format(value='A[vk]')}", k=lanes),
        [f"C[0] = {combined.format(value=value)}"],
    )
