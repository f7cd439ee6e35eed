"""The work of a program: multiply-accumulates of its matrix products."""

from __future__ import annotations

import math

from tvm import relax

from .ops import attributes, operator_name

__all__ = ["multiply_accumulates"]


def multiply_accumulates(function: relax.Function) -> int:
    """Count the multiply-accumulates of the matrix products in a function of static shapes.

    Linear layers and both products of attention, Q K^T and P V, are counted; row operations and
    epilogues are not. Padding counts as if it were computed.

    Parameters
    ----------
    function
        Over ``integer.*`` operators.

    Returns
    -------
    int
    """
    return sum(
        _of_call(binding.value) for block in function.body.blocks for binding in block.bindings
    )


def _of_call(value: relax.Expr) -> int:
    op = operator_name(value)
    if op == "integer.linear":
        x, weight = (tuple(int(size) for size in arg.ty.shape.values) for arg in value.args[:2])
        return math.prod(x) * weight[0]
    if op == "integer.attention":
        batch, queries, channels = (int(size) for size in value.args[0].ty.shape.values)
        keys = int(value.args[1].ty.shape.values[1])
        head_dim = channels // attributes(value).num_heads
        return 2 * batch * attributes(value).num_heads * queries * keys * head_dim
    return 0
