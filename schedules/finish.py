"""Last steps on a scheduled kernel: what TVM's analyses and the code generator cannot take."""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import ir, s_tir, sym, tirx

from .nodes import calls_of, changed, contains, nodes_of, substituted

_EXTERNAL = "tirx.call_extern"
SCALAR_LOOPS = "ibert.scalar_loops"
"""Attribute of a kernel: loops that lost their vectors to numbers of 64 bits."""


def without_zeros(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Leave out the zeros before calls of functions that store sums without reading what was there.

    Parameters
    ----------
    func
        Scheduled kernel, in which only blocks with such a call have a beginning of their own.

    Returns
    -------
    tvm.tirx.PrimFunc
        It computes the same.
    """

    def begun(block: s_tir.SBlock) -> s_tir.SBlock:
        is_call = block.init is not None and not nodes_of(block.body, tirx.For, s_tir.SBlock)
        return changed(block, init=None) if is_call and calls_of(block.body, _EXTERNAL) else block

    return tvm_ffi.structural_map(func, (s_tir.SBlock, begun))


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

    That is where their extent is no power of two, and where the lanes are 64-bit numbers.

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
        wide = _has_wide_lanes(loop)
        if lanes & (lanes - 1) == 0 and not wide:
            return loop
        wide_loops += wide
        return changed(loop, kind=tirx.ForKind.SERIAL)

    mapped = tvm_ffi.structural_map(func, (tirx.For, serial))
    return mapped.with_attr(SCALAR_LOOPS, wide_loops) if wide_loops else mapped


def _has_wide_lanes(loop: tirx.For) -> bool:
    """Whether 64-bit numbers differ from one iteration of a loop to the next."""
    wide = [one for one in nodes_of(loop.body, ir.Expr) if str(one.ty) in ("int64", "uint64")]
    if not wide:
        return False
    lanes = [loop.loop_var]

    def differs(node: ir.Expr) -> bool:
        return any(contains(node, var) for var in lanes)

    for block in nodes_of(loop.body, s_tir.SBlockRealize):
        pairs = zip(block.block.iter_vars, block.iter_values, strict=True)
        lanes += [axis.var for axis, value in pairs if differs(value)]
    for let in reversed(nodes_of(loop.body, tirx.Let)):  # the outermost first
        if differs(let.value):
            lanes.append(let.var)
    return any(differs(node) for node in wide)
