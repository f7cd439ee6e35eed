"""Variables of their own for each copy of an expression that binds some."""

from __future__ import annotations

import tvm
from tvm import tirx


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
