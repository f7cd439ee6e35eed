"""The unit that compile-time passes rewrite: an integer module and the values of its parameters.

Weights are folded at compile time (packed for the dot-product instruction, compensated for operand
offsets), so a pass that changes how a parameter is stored must change its value too. Passes here
are therefore functions from :class:`IntegerProgram` to :class:`IntegerProgram`; nothing is modified
in place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import tvm
from tvm import relax

from ..errors import LoweringError


@dataclass(frozen=True)
class IntegerProgram:
    """An integer module with its parameters.

    Attributes
    ----------
    module
        Relax functions that take ``num_input`` inputs followed by all parameters, in one order.
    parameters
        Integer arrays by parameter name, in that order.
    """

    module: tvm.IRModule
    parameters: Mapping[str, np.ndarray]

    def with_module(self, module: tvm.IRModule) -> IntegerProgram:
        """Return the same parameters with another module."""
        return replace(self, module=module)


def relax_functions(module: tvm.IRModule) -> dict[str, relax.Function]:
    """Relax functions of a module by name, without its primitive (fused) ones."""
    return {
        str(var.name_hint if hasattr(var, "name_hint") else var.name): function
        for var, function in module.functions_items()
        if isinstance(function, relax.Function) and not is_primitive(function)
    }


def is_primitive(function: relax.Function) -> bool:
    """Tell whether a Relax function is the body of one fused kernel."""
    return function.attrs is not None and "Primitive" in function.attrs


def bindings(function: relax.Function) -> list[relax.VarBinding]:
    """All bindings of a function, in order."""
    return [binding for block in function.body.blocks for binding in block.bindings]


def variables(expr: relax.Expr) -> list[relax.Var]:
    """Variables that an expression in normal form reads, in order."""
    if isinstance(expr, relax.Var):
        return [expr]
    if isinstance(expr, relax.Tuple):
        return [var for item in expr.fields for var in variables(item)]
    if isinstance(expr, relax.Call):
        return [arg for arg in expr.args if isinstance(arg, relax.Var)]
    if isinstance(expr, relax.TupleGetItem):
        return variables(expr.tuple_value)
    return []


def substitute(expr: relax.Expr, new: Mapping[relax.Var, relax.Expr]) -> relax.Expr:
    """Replace the variables that an expression in normal form reads."""
    if isinstance(expr, relax.Var):
        return new.get(expr, expr)
    if isinstance(expr, relax.Tuple):
        return relax.Tuple([substitute(item, new) for item in expr.fields])
    if isinstance(expr, relax.TupleGetItem):
        return relax.TupleGetItem(substitute(expr.tuple_value, new), expr.index)
    if isinstance(expr, relax.Call):
        return relax.Call(expr.op, [substitute(arg, new) for arg in expr.args], expr.attrs)
    return expr


def num_inputs(function: relax.Function) -> int:
    """Return the number of leading parameters of `function` that are model inputs.

    Raises
    ------
    LoweringError
        If the attribute ``num_input`` is missing.
    """
    if function.attrs is None or "num_input" not in function.attrs:
        raise LoweringError(
            what="cannot tell inputs from weights",
            where="function attributes",
            why="the attribute num_input is missing",
            todo="quantise the model again",
        )
    return int(function.attrs["num_input"])
