"""Rules of operators on whole rows of channels, of which a decomposed LayerNorm is made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from . import functions, views
from .arrays import Array
from .emitter import Emitter
from .inputs import scalar
from .rows import row_places
from .values import FromInputs, Hidden, Mismatch, Pointwise, RowFunction, Value, Weight
from .views import ViewError

_Function = TypeVar("_Function", bound=Pointwise | RowFunction)


def settled(c: Emitter, value: Any) -> Any:
    """Return a function of rows as the hidden tensor that it is, where it is one already."""
    if not isinstance(value, RowFunction):
        return value
    try:
        return c.hidden(value)
    except (Mismatch, ViewError):
        return value


def reduce_rows(
    c: Emitter, op: str, value: Any, axes: Sequence[int] | None, *, keepdims: bool
) -> RowFunction | None:
    """Interpret a mean or sum over all channels of a token, or of a head; None if it is none."""
    value = settled(c, value)
    if not isinstance(value, (Hidden, Pointwise, RowFunction)) or axes is None or len(axes) != 1:
        return None
    base = value if isinstance(value, Hidden) else value.base
    if isinstance(value, RowFunction) and value.reduced:
        return None
    if axes[0] % len(base.view) != len(base.view) - 1 or _width(base) < 2:
        return None
    rows = _as_rows(value)
    reduce = np.mean if op == "relax.mean" else np.sum
    samples = reduce(rows.samples, axis=-1, keepdims=True)
    text = f"{op[6:]}({rows.text})"
    return replace(
        rows,
        samples=samples,
        text=text,
        parts=(),
        reduced=True,
        dropped=not keepdims,
        ops=(*rows.ops, op),
    )


def applied(
    op: str, x: _Function, samples: Sequence[Any], texts: Sequence[str], ops: tuple[str, ...]
) -> _Function:
    """Return the function that an elementwise operator makes of `x` and what else it reads.

    Parameters
    ----------
    op : str
        The operator.
    x : Pointwise or RowFunction
        Says what the function is one of.
    samples, texts : sequence
        Values and text of every operand, in order.
    ops : tuple of str
        What is absorbed with it.

    Returns
    -------
    Pointwise or RowFunction
        As `x`.
    """
    with np.errstate(all="ignore"):
        values = functions.ELEMENTWISE[op](*samples)
    text = f"{op.removeprefix('relax.')}({', '.join(texts)})"
    return replace(x, samples=values, text=text, parts=(), ops=ops)


def rows_pair(c: Emitter, op: str, left: Value, right: Value) -> RowFunction | None:
    """Interpret an elementwise operator of which an operand is a function of rows.

    Returns
    -------
    RowFunction or None
        None if its operands are hidden tensors, and other rules decide.
    """
    operands = [left, right]
    if not any(isinstance(item, Weight) for item in operands):
        operands = [_unless_paired(c, left, right), _unless_paired(c, right, left)]
    row = next((item for item in operands if isinstance(item, RowFunction)), None)
    if row is None:
        return None
    sides = []
    weights: list[Weight] = []
    for item in operands:
        side = _side(item, row)
        if side is None:
            return None
        sides.append(side)
        weights += [item] if isinstance(item, Weight) else []
    lifted = [item for item in sides if isinstance(item, RowFunction)]
    if any(item.dropped for item in lifted):
        raise Mismatch("a statistic of each row is combined with rows that keep their channels")
    arrays = [item.samples if isinstance(item, RowFunction) else item for item in sides]
    texts = [item.text if isinstance(item, RowFunction) else "weight" for item in sides]
    gammas = [*weights] if op in ("relax.multiply", "relax.divide") else []
    betas = [*weights] if op in ("relax.add", "relax.subtract") else []
    pair = op == "relax.add" and len(lifted) == 2
    result = applied(op, row, arrays, texts, (*(op for item in lifted for op in item.ops), op))
    return replace(
        result,
        parts=tuple(operands) if pair else (),
        reduced=all(item.reduced for item in lifted) and result.samples.shape[-1] == 1,
        gammas=(*(w for item in lifted for w in item.gammas), *gammas),
        betas=(*(w for item in lifted for w in item.betas), *betas),
    )


def _unless_paired(c: Emitter, item: Value, other: Value) -> Value:
    """Take a complete LayerNorm for a hidden tensor, unless its own operand comes back to it."""
    if not isinstance(item, RowFunction) or _same_rows(item, other):
        return item
    settled_item: Value = settled(c, item)
    return settled_item


def _same_rows(item: RowFunction, other: Value) -> bool:
    base = other if isinstance(other, Hidden) else getattr(other, "base", None)
    return isinstance(base, Hidden) and base.source is item.base.source


def _side(item: Any, row: RowFunction) -> RowFunction | Array | None:
    """Return an operand on the example rows: a function, or numbers; None for something else."""
    if isinstance(item, (Hidden, Pointwise, RowFunction)):
        lifted = _as_rows(item)
        same = lifted.base.source is row.base.source and lifted.base.view == row.base.view
        return lifted if same else None
    if isinstance(item, Weight):
        return _weight_of_rows(item.array, row.base)
    number = scalar(item) if isinstance(item, FromInputs) else None
    return None if number is None else np.full((1, 1), number)


def _weight_of_rows(array: Array, base: Hidden) -> Array | None:
    """Return a weight as [1, channels of a row], or [heads, 1, channels of a row]."""
    if array.size == 1:
        return np.full((1, 1), float(array.reshape(-1)[0]))
    width = _width(base)
    heads = base.source.channels // max(width, 1)
    axes = [
        axis
        for axis, atoms in enumerate(base.view[:-1])
        if any(atom.kind == "channel" for atom in atoms)
    ]
    shape = (1,) * (len(base.view) - array.ndim) + array.shape
    if shape[-1] != width:
        return None
    if array.size == width:
        return array.reshape(1, width).astype(np.float64)
    if len(axes) == 1 and array.size == heads * width and shape[axes[0]] == heads:
        return array.reshape(heads, 1, width).astype(np.float64)
    return None


def _width(base: Hidden) -> int:
    """Channels of a row: all of a token, or those of a head; 0 where the last axis is neither."""
    return views.row_width(base.view, base.source.channels)


def _as_rows(value: Hidden | Pointwise | RowFunction) -> RowFunction:
    """A hidden tensor, or a scalar function of one, as a function of rows of its last axis."""
    if isinstance(value, RowFunction):
        return value
    x = value.lifted()
    # Something else is no norm in the end, but may be a sum.
    samples = x.samples[row_places(_width(x.base) or x.base.source.channels)]
    return RowFunction(x.base, samples, x.text, ops=x.ops, layer=x.layer)
