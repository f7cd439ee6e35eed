"""Undoing vectors that the code generator fails on: of odd lengths, or of 64-bit numbers."""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import ir, tirx

from .nodes import changed


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
        The compiler may still find vectors of its own in such loops.
    """

    def serial(loop: tirx.For) -> tirx.For:
        if loop.kind != tirx.ForKind.VECTORIZED:
            return loop
        lanes = int(loop.extent)
        if lanes & (lanes - 1) == 0 and not _has_wide_numbers(loop.body):
            return loop
        return changed(loop, kind=tirx.ForKind.SERIAL)

    return tvm_ffi.structural_map(func, (tirx.For, serial))


def _has_wide_numbers(body: tirx.Stmt) -> bool:
    """Whether 64-bit numbers are computed."""
    found = []

    def look(node: Any) -> None:
        if isinstance(node, ir.Expr) and str(node.ty) in ("int64", "uint64"):
            found.append(node)

    tvm_ffi.structural_walk(body, (object, look))
    return bool(found)
