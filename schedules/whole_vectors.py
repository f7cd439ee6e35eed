"""Undoing vectors that the code generator fails on: of odd lengths, or of 64-bit numbers."""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import ir, tirx

from .nodes import changed

SCALAR_LOOPS = "ibert.scalar_loops"
"""Attribute of a kernel: loops that lost their vectors to numbers of 64 bits."""


def keep_whole_vectors(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Make vectorised loops serial where vectors would not be whole registers of 32 bits or less.

    That is where their extent is no power of two, and where 64-bit numbers occur in them.

    Parameters
    ----------
    func
        Scheduled kernel.

    Returns
    -------
    tvm.tirx.PrimFunc
        The compiler may still find vectors of its own in such loops. It has the attribute
        `SCALAR_LOOPS` where there are loops of 64-bit numbers.
    """
    wide_loops = 0

    def serial(loop: tirx.For) -> tirx.For:
        nonlocal wide_loops
        if loop.kind != tirx.ForKind.VECTORIZED:
            return loop
        lanes = int(loop.extent)
        wide = _has_wide_numbers(loop.body)
        if lanes & (lanes - 1) == 0 and not wide:
            return loop
        wide_loops += wide
        return changed(loop, kind=tirx.ForKind.SERIAL)

    mapped = tvm_ffi.structural_map(func, (tirx.For, serial))
    return mapped.with_attr(SCALAR_LOOPS, wide_loops) if wide_loops else mapped


def _has_wide_numbers(body: tirx.Stmt) -> bool:
    """Whether 64-bit numbers are computed."""
    found = []

    def look(node: Any) -> None:
        if isinstance(node, ir.Expr) and str(node.ty) in ("int64", "uint64"):
            found.append(node)

    tvm_ffi.structural_walk(body, (object, look))
    return bool(found)
