"""Rules of the operators of which rotary embeddings are made."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import mixing
from .inputs import constant_array, scalar
from .values import FromInputs, Hidden, Mixed, Pointwise, Weight


def mixed_binary(op: str, left: Any, right: Any) -> Mixed | None:
    """Interpret an elementwise operator on channels of heads that are mixed by position.

    Parameters
    ----------
    op : str
        The operator.
    left, right : Value
        Its operands.

    Returns
    -------
    Mixed or None
        None if there are none, and other rules decide.

    Raises
    ------
    Mismatch
        If they are no lanes of one head.
    """
    pair = [item for item in (left, right) if isinstance(item, Mixed)]
    if op in ("relax.add", "relax.subtract") and len(pair) == 2:
        return mixing.added(left, right, 1 if op == "relax.add" else -1, op)
    if op not in ("relax.multiply", "relax.divide"):
        return None
    for one, other in ((left, right), (right, left)):
        number = scalar(other) if isinstance(other, FromInputs) else None
        if isinstance(one, Mixed) and number is not None and (op == "relax.multiply" or number):
            if op == "relax.divide" and one is right:
                return None
            factor = number if op == "relax.multiply" else 1 / number
            return mixing.scaled(one, factor, (*one.ops, op))
        if op == "relax.multiply" and isinstance(one, Mixed | Hidden | Pointwise):
            table = _table(other)
            view = one.base.view if isinstance(one, Pointwise) else one.view
            if table is None or not mixing.differs_by_position(table, view):
                continue
            mixed = mixing.as_mixed(one)
            if mixed is not None:
                return mixing.turned(mixed, table, op)
    return None


def _table(value: Any) -> NDArray[Any] | None:
    """Numbers that are the same in every run; None if a value holds no such."""
    if isinstance(value, Hidden) and value.rows is not None:
        value = value.rows
    if isinstance(value, Weight):
        return value.array
    array = constant_array(value) if isinstance(value, FromInputs) else None
    return None if array is None or array.dtype.kind != "f" else np.asarray(array)
