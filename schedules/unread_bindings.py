"""Dropping bindings of known numbers, and of what nobody reads."""

from __future__ import annotations

import tvm_ffi
from tvm import sym, tirx


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

        def known(var: tirx.Var) -> tirx.Expr:
            return number if var.same_as(let.var) else var

        return tvm_ffi.structural_map(
            tvm_ffi.structural_map(let.body, (tirx.Var, known)), (tirx.Let, read)
        )

    return tvm_ffi.structural_map(func, (tirx.Let, read))
