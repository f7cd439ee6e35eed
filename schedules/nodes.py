"""Nodes of TIR, which cannot be changed in place."""

from __future__ import annotations

import inspect
from typing import Any, TypeVar

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
