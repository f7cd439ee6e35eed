"""Last steps on a scheduled kernel: what TVM's analyses and the code generator cannot take."""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import ir, sym, tirx

from .nodes import changed, nodes_of, substituted

SCALAR_LOOPS = "ibert.scalar_loops"
"""Attribute of a kernel: loops that lost their vectors to numbers of 64 bits."""


def without_unread_bindings(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Leave out let-bindings of numbers that TVM can fold, and of variables that nobody reads.

    Where a number turns out to be known, TVM folds what reads a variable, ``t * 0``, and leaves the
    binding. Its vectoriser refuses one of vectors round what has become no vector, its analyses one
    whose value they fold after they have seen it.

    Parameters
    ----------
    func
        Scheduled kernel.

    Returns
    -------
    tvm.tirx.PrimFunc
        It computes the same.
    """
    analyzer = sym.Analyzer()

    def read(let: tirx.Let) -> tirx.Expr:
        if not any(let.var.same_as(one) for one in tirx.analysis.undefined_vars(let.body)):
            return let.body
        number = analyzer.simplify(let.value)
        if not isinstance(number, tirx.IntImm):
            return let

        return tvm_ffi.structural_map(substituted(let.body, {let.var: number}), (tirx.Let, read))

    return tvm_ffi.structural_map(func, (tirx.Let, read))


def with_distinct_variables(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Give every let-binding of a scheduled kernel a variable that no other binding has.

    Inlining copies a stage to all who read it, with the variables that it binds. TVM's analyses
    take a variable for one value in the whole of a function, and refuse a second one.

    Parameters
    ----------
    func
        Scheduled kernel.

    Returns
    -------
    tvm.tirx.PrimFunc
        It computes the same.
    """
    return tirx.transform.ConvertSSA()(tvm.IRModule({"main": func}))["main"]


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
        wide = any(str(node.ty) in ("int64", "uint64") for node in nodes_of(loop.body, ir.Expr))
        if lanes & (lanes - 1) == 0 and not wide:
            return loop
        wide_loops += wide
        return changed(loop, kind=tirx.ForKind.SERIAL)

    mapped = tvm_ffi.structural_map(func, (tirx.For, serial))
    return mapped.with_attr(SCALAR_LOOPS, wide_loops) if wide_loops else mapped
