"""Looking for nodes of TIR, and making them anew: they cannot be changed in place."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeVar

import tvm_ffi
from tvm import ir, s_tir, tirx

Node = TypeVar("Node")
Block: TypeAlias = s_tir.schedule.SBlockRV
Loop: TypeAlias = s_tir.schedule.LoopRV


def changed(node: Node, **fields: Any) -> Node:
    """Make a node anew, with other fields where they are given.

    Parameters
    ----------
    node
        A statement whose constructor takes its fields by their names; it stays as it is.
    **fields
        In the place of its own.
    """
    own = {name: getattr(node, name) for name in inspect.signature(type(node)).parameters}
    return type(node)(**{**own, **fields})


def unmarked(node: tirx.For | s_tir.SBlock, *marks: str) -> dict[str, Any]:
    """Annotations of a loop or block but for some."""
    return {key: value for key, value in node.annotations.items() if key not in marks}


def nodes_of(tree: Any, *kinds: type) -> list[Any]:
    """All nodes of some kinds in an expression, a statement or a function, in order."""
    found: list[Any] = []
    tvm_ffi.structural_walk(tree, (kinds, found.append))
    return found


def calls_of(tree: Any, name: str) -> list[ir.Call]:
    """All calls of an operator."""
    return [call for call in nodes_of(tree, ir.Call) if getattr(call.op, "name", "") == name]


def with_argument(
    tree: tirx.Stmt, place: int, change: Callable[[tirx.Expr], tirx.Expr]
) -> tirx.Stmt:
    """A statement whose calls of functions in C have another argument at a place."""
    external = ir.Op.get("tirx.call_extern")

    def of_call(call: ir.Call) -> ir.Call:
        if not call.op.same_as(external):
            return call
        arguments = list(call.args)
        arguments[place] = change(arguments[place])
        return ir.Call(call.op, arguments, ret_ty=call.ty)

    return tvm_ffi.structural_map(tree, (ir.Call, of_call))


def contains(tree: Any, var: tirx.Var) -> bool:
    """Whether a variable occurs in a tree."""
    return any(one.same_as(var) for one in nodes_of(tree, ir.Var))


def substituted(tree: Any, values: Mapping[tirx.Var, tirx.Expr]) -> Any:
    """A tree with other expressions in the place of variables."""
    if not values:
        return tree
    return tvm_ffi.structural_map(tree, (ir.Var, lambda var: values.get(var, var)))
