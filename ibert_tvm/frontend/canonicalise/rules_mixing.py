"""Rules of the operators of which rotary embeddings are made."""

from __future__ import annotations

import numpy as np

from . import mixing
from .arrays import Array
from .emitter import Emitter
from .inputs import constant_array, scalar
from .values import FromInputs, Hidden, Mixed, Pointwise, Value, Weight
from .views import View


def mixed_sum(_c: Emitter, op: str, left: Mixed, right: Mixed) -> Mixed:
    """Interpret a sum or difference of channels of one head."""
    return mixing.added(left, right, 1 if op == "relax.add" else -1, op)


def mixed_times(_c: Emitter, op: str, mixed: Mixed, other: FromInputs) -> Mixed | None:
    """Interpret channels of heads times a number; None if it is none."""
    number = scalar(other)
    return None if number is None else mixing.scaled(mixed, number, (*mixed.ops, op))


def mixed_over(_c: Emitter, op: str, mixed: Mixed, other: FromInputs) -> Mixed | None:
    """Interpret channels of heads divided by a number; None if it is none."""
    number = scalar(other)
    return mixing.scaled(mixed, 1 / number, (*mixed.ops, op)) if number else None


def turned(_c: Emitter, op: str, one: Mixed | Hidden | Pointwise, other: Value) -> Mixed | None:
    """Interpret channels of heads times numbers by position; None if they are no such."""
    table = _table(other)
    turning = table is not None and mixing.differs_by_position(table, one.view)
    mixed = mixing.as_mixed(one) if turning else None
    return None if mixed is None or table is None else mixing.turned(mixed, table, op)


def turns(value: Value, view: View) -> bool:
    """Tell whether a value holds numbers that differ along the tokens of a tensor in `view`."""
    table = _table(value)
    return table is not None and mixing.differs_by_position(table, view)


def _table(value: Value) -> Array | None:
    """Numbers that are the same in every run; None if a value holds no such."""
    if isinstance(value, Hidden) and value.rows is not None:
        value = value.rows
    if isinstance(value, Weight):
        return value.array
    array = constant_array(value) if isinstance(value, FromInputs) else None
    return None if array is None or array.dtype.kind != "f" else np.asarray(array)
