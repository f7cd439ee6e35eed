"""Looking for nodes of TIR, and making them anew: they cannot be changed in place."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, TypeVar

import tvm_ffi
from tvm import ir, tirx

Node = TypeVar("Node")


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


def nodes_of(tree: Any, *kinds: type, order: str = "post") -> list[Any]:
    """All nodes of some kinds in an expression, a statement or a function, inner ones first.

    With the order ``"pre"`` outer ones come first.
    """
    found: list[Any] = []
    tvm_ffi.structural_walk(tree, (kinds, found.append), order=order)
    return found


def calls_of(tree: Any, name: str) -> list[ir.Call]:
    """All calls of an operator."""
    return [call for call in nodes_of(tree, ir.Call) if getattr(call.op, "name", "") == name]


def substituted(tree: Any, values: Mapping[tirx.Var, tirx.Expr]) -> Any:
    """A tree with other expressions in the place of variables."""
    return tvm_ffi.structural_map(tree, (ir.Var, lambda var: values.get(var, var)))
