"""Functions of whole rows of channels, of which a decomposed LayerNorm is made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ...common.types import Array
from . import functions, views
from .builder import Builder, layer_of
from .mismatch import Mismatch
from .rows import fit_norm, row_places
from .values import Change, Emitted, Hidden, Recognised, Tokens, Value, Weight, add, applied


@dataclass(frozen=True, eq=False)
class RowFunction(Recognised):
    """A function of the channels of one token, on the way from a hidden tensor to its LayerNorm.

    Where the tensor has heads in an axis of their own, it is one of the channels of a head.

    Parameters
    ----------
    base
        The tensor.
    samples
        The function on the example rows of `rows`, float64 [rows, channels or 1]; with a weight for
        each head [heads, rows, channels or 1].
    text
        The operators in order, for messages.
    parts
        The two terms if the last operator was an addition.
    gammas, betas
        The weights that multiplied it and were added to it.
    reduced
        Whether it is one number per row.
    dropped
        Whether the axis of channels is gone, which the next operator has to bring back.
    """

    base: Hidden
    samples: NDArray[np.float64]
    text: str
    parts: tuple[Value, ...] = ()
    gammas: tuple[Weight, ...] = ()
    betas: tuple[Weight, ...] = ()
    reduced: bool = False
    dropped: bool = False

    WHAT: ClassVar[str] = "a statistic of the channels of each token"

    def settled(self, c: Builder) -> Value:
        try:
            return self.hidden(c)
        except Mismatch:
            return self

    def moved(self, c: Builder, op: str, change: Change) -> Value:
        return self.hidden(c).moved(c, op, change)

    def broadcast(self, c: Builder, op: str, shape: tuple[int, ...]) -> Value:
        if not self.reduced or self.dropped:
            return super().broadcast(c, op, shape)
        # A statistic of each row, repeated for the channels that it is combined with.
        if shape != views.shape_of(self.base.view):
            raise Mismatch("a statistic of each token is repeated to another shape")
        return self.after(op)

    def expanded(self, c: Builder, op: str, axes: list[int]) -> Value:
        if not self.dropped:
            return super().expanded(c, op, axes)
        if axes not in ([-1], [len(self.base.view) - 1]):  # the channels of a mean come back
            raise Mismatch("a statistic of each token gets an axis that is not that of channels")
        return self.after(op, dropped=False)

    def elementwise(self, c: Builder, op: str) -> Value:
        return applied(op, self, (self.samples,), (self.text,), (*self.ops, op))

    def bounded(self, c: Builder, op: str, low: float, high: float) -> Value:
        with np.errstate(all="ignore"):
            samples = np.clip(self.samples, low, high)
        text = f"{op.removeprefix('relax.')}({self.text}, {low:g}, {high:g})"
        return self.after(op, samples=samples, text=text, parts=())

    def recognised(self, c: Builder) -> Hidden:
        """Recognise a norm and emit it, or the sum that was taken last."""
        base, width = self.base, _width(self.base)
        known = fit_norm(self.samples, width) if width > 1 else None
        if known is None and self.parts:
            left, right = self.parts
            return add(c, left, right, self.ops[-1:])
        if known is None and width > 1:
            # A norm directly behind an activation function: both are functions of its operand.
            both = functions.before_norm(lambda curve: fit_norm(self.samples, width, curve))
            if both is not None:
                kind, attributes, known = both
                base = base.activated(c, kind, (), **attributes)
        if known is None:
            raise Mismatch(
                f"over the channels of a token it computes {self.text}, which is neither a "
                "LayerNorm nor an RMSNorm",
                op=self.ops[-1],
                layer=self.layer,
            )
        x = base.emit(c)
        if known.is_unit and width == x.channels:
            return base.showing(x.then(c, "l2_norm", self.ops))
        if width < x.channels:
            known = known.by_head()
        weights = [_exact(self.gammas, known.gamma, f"{x.name}.{known.kind}.weight")]
        if known.beta is not None:
            default = f"{layer_of(weights[0].name)}.bias"
            weights.append(_exact(self.betas, known.beta, default))
        return base.showing(emit_norm(c, known.kind, x, weights, known.epsilon, self.ops))


def emit_norm(
    c: Builder, kind: str, x: Emitted, weights: Sequence[Weight], epsilon: float, ops: Sequence[str]
) -> Emitted:
    """Emit a LayerNorm or an RMSNorm over the channels of `x`, or of its heads."""
    name = layer_of(weights[0].name)
    return Emitted.call(c, kind, name, x.channels, ops, x, *weights, epsilon=epsilon)


def reduce_rows(
    c: Builder, op: str, value: Value, axes: Sequence[int] | None, *, keepdims: bool
) -> RowFunction | None:
    """Interpret a mean or sum over all channels of a token, or of a head; None if it is none."""
    rows = _as_rows(value.settled(c))
    if rows is None or axes is None or len(axes) != 1 or rows.reduced:
        return None
    rank = len(rows.base.view)
    if axes[0] % rank != rank - 1 or _width(rows.base) < 2:
        return None
    reduce = np.mean if op == "relax.mean" else np.sum
    return rows.after(
        op,
        samples=reduce(rows.samples, axis=-1, keepdims=True),
        text=f"{op[6:]}({rows.text})",
        parts=(),
        reduced=True,
        dropped=not keepdims,
    )


def rows_pair(c: Builder, op: str, left: Value, right: Value) -> RowFunction | None:
    """Interpret an elementwise operator of which an operand is a function of rows.

    Returns
    -------
    RowFunction or None
        None if its operands are hidden tensors, and other rules decide.
    """
    operands = [left, right]
    weights = tuple(item for item in operands if isinstance(item, Weight))
    if not weights:
        # A complete LayerNorm is a hidden tensor, unless its own operand comes back to it.
        pairs = ((left, right), (right, left))
        operands = [a if _same_rows(a, b) else a.settled(c) for a, b in pairs]
    row = next((item for item in operands if isinstance(item, RowFunction)), None)
    if row is None:
        return None
    lifted = [rows for item in operands if (rows := _as_rows(item)) is not None]
    if any(not _same_tensor(item.base, row.base) for item in lifted):
        return None
    arrays, texts = [], []
    for item in operands:
        rows = _as_rows(item)
        array = _numbers(item, row.base) if rows is None else rows.samples
        if array is None:
            return None
        arrays.append(array)
        texts.append("weight" if rows is None else rows.text)
    if any(item.dropped for item in lifted):
        raise Mismatch("a statistic of each row is combined with rows that keep their channels")
    gammas = weights if op in ("relax.multiply", "relax.divide") else ()
    betas = weights if op in ("relax.add", "relax.subtract") else ()
    pair = op == "relax.add" and len(lifted) == 2
    result = applied(op, row, arrays, texts, (*(op for item in lifted for op in item.ops), op))
    return replace(
        result,
        parts=tuple(operands) if pair else (),
        reduced=all(item.reduced for item in lifted) and result.samples.shape[-1] == 1,
        gammas=(*(w for item in lifted for w in item.gammas), *gammas),
        betas=(*(w for item in lifted for w in item.betas), *betas),
    )


def _same_tensor(one: Hidden, other: Hidden) -> bool:
    return one.source is other.source and one.view == other.view


def _same_rows(item: Value, other: Value) -> bool:
    """Tell whether a value is a function of the rows that another one is made of."""
    base = other if isinstance(other, Hidden) else getattr(other, "base", None)
    if not isinstance(item, RowFunction) or not isinstance(base, Hidden):
        return False
    return base.source is item.base.source


def _numbers(item: Value, base: Hidden) -> Array | None:
    """Return an operand that is no function on the example rows of a tensor; None if it is none."""
    if isinstance(item, Weight):
        return _weight_of_rows(item.array, base)
    number = item.number()
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


def _as_rows(value: Value) -> RowFunction | None:
    """A hidden tensor, or a scalar function of one, as a function of rows of its last axis."""
    if isinstance(value, RowFunction):
        return value
    if not isinstance(value, Tokens):
        return None
    x = value.lifted()
    # Something else is no norm in the end, but may be a sum.
    samples = x.samples[row_places(_width(x.base) or x.base.source.channels)]
    return RowFunction(x.base, samples, x.text, ops=x.ops, layer=x.layer)


def _exact(weights: Sequence[Weight], fitted: NDArray[np.float64], name: str) -> Weight:
    """Return the weight that was measured to be `fitted`, which has its name; else the measure."""
    for weight in weights:
        if weight.array.size not in (1, fitted.shape[-1], fitted.size):
            continue
        array = weight.array.reshape(fitted.shape if weight.array.size == fitted.size else -1)
        array = np.broadcast_to(array, fitted.shape)
        if np.allclose(array, fitted, rtol=1e-4, atol=1e-5):
            return Weight(weight.name, array)
    return Weight(weights[0].name if weights else name, fitted.astype(np.float32))
