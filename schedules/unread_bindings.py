"""Dropping bindings of what nobody reads."""

from __future__ import annotations

import tvm_ffi
from tvm import tirx


def without_unread_bindings(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Leave out let-bindings whose variable does not occur in what they are bound for.

    Where a number turns out to be known, TVM folds what reads a variable, ``t * 0``, and leaves the
    binding. Its vectoriser refuses one of vectors round what has become no vector.

    Parameters
    ----------
    func
        Scheduled kernel.

    Returns
    -------
    tvm.tirx.PrimFunc
        It computes the same.
    """

    def read(let: tirx.Let) -> tirx.Expr:
        used = tirx.analysis.undefined_vars(let.body)
        return let if any(let.var.same_as(one) for one in used) else let.body

    return tvm_ffi.structural_map(func, (tirx.Let, read))
