"""Functions of whole rows of channels, of which a decomposed LayerNorm is made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from ...common.types import Array, Doubles, Longs
from . import functions, views
from .builder import Builder, layer_of
from .functions import GRID
from .mismatch import Mismatch
from .values import Change, Emitted, Hidden, Recognised, Tokens, Value, Weight, add, applied

# Recognition of LayerNorm and RMSNorm, in whatever operators they are written, by values.
#
# Exporters without the operator write it as ReduceMean, Sub, Pow, ReduceMean, Add, Sqrt, Div, Mul
# and Add; others square by a product, take a reciprocal, fold gamma into it, or use E[x²] - E[x]².
# As with activation functions (`functions`), the operators are evaluated, here on example rows, and
# what they compute is compared with gamma (x - mean) / sqrt(variance + epsilon) + beta, and with
# gamma x / sqrt(mean of x² + epsilon). The rows take their values from the grid of `functions`, so
# that a scalar function is a function of rows as well. The first row is 0, which gives beta; one
# has a variance near usual epsilons, which gives epsilon.

# Constants in float32, a mean by a rounded 1/C: errors up to a few 1e-6 of the result.
_TOLERANCE = 2e-5
_ZERO, _TINY, _LARGE = 0, 1, 3
# Of the squared length of a row; that of the shortest example is 5e-5.
_NO_EPSILON = 1e-10


@dataclass(frozen=True)
class Norm:
    """Parameters of a LayerNorm or of an RMSNorm.

    Parameters
    ----------
    gamma
        [channels] float64; [heads, channels] where rows are heads with weights of their own.
    beta
        As gamma; None for an RMSNorm.
    epsilon
        Added to the variance, or to the mean square.
    """

    gamma: Doubles
    beta: Doubles | None
    epsilon: float

    def by_head(self) -> Norm:
        """Return it with weights of heads in two dimensions, [heads or 1, channels]."""
        width = self.gamma.shape[-1]
        beta = None if self.beta is None else self.beta.reshape(-1, width)
        return replace(self, gamma=self.gamma.reshape(-1, width), beta=beta)

    @property
    def kind(self) -> str:
        """Its canonical operator."""
        return "rms_norm" if self.beta is None else "layer_norm"

    @property
    def is_unit(self) -> bool:
        """Whether it scales rows to length 1: ``x / |x|``, with an epsilon that counts for none."""
        channels = self.gamma.size
        plain = self.beta is None and bool(
            np.allclose(self.gamma, 1 / np.sqrt(channels), rtol=_TOLERANCE, atol=0)
        )
        return plain and self.epsilon * channels <= _NO_EPSILON


def row_places(channels: int) -> Longs:
    """Return the indices in `GRID` of the example rows, [rows, channels]."""
    random = np.random.default_rng(0)
    centre = len(GRID) // 2
    rows = [np.full(channels, centre)]
    for reach in (1, 60, centre, centre, centre):
        rows.append(centre + random.integers(-reach, reach + 1, channels))
    rows.append(2 * centre - rows[-1])  # so that every channel is once above 0, as ReLU needs
    rows[_TINY][:2] = centre - 1, centre + 1  # never all the same
    return np.stack(rows)


def row_values(channels: int, curve: Doubles = GRID) -> Doubles:
    """Return the example rows [rows, channels], or a function of them by its values on the grid."""
    return curve[row_places(channels)]


def fit_norm(samples: Doubles, channels: int, curve: Doubles = GRID) -> Norm | None:
    """Return the norm that maps the example rows to `samples`, or None if there is none.

    Parameters
    ----------
    samples
        [rows, channels] float64; [heads, rows, channels] for rows that are heads.
    channels
        Number of channels of a row, at least 2.
    curve
        Values on the grid of a function that is applied to the rows before.

    Returns
    -------
    Norm or None
        Its parameters.
    """
    if samples.ndim == 3:
        each = [fit_norm(head, channels, curve) for head in samples]
        first = each[0]
        if first is None or any(
            one is None or (one.kind, one.epsilon) != (first.kind, first.epsilon) for one in each
        ):
            return None
        gammas, betas = zip(*((one.gamma, one.beta) for one in each if one), strict=True)
        return Norm(
            np.stack(gammas), None if first.beta is None else np.stack(betas), first.epsilon
        )
    x = row_values(channels, curve)
    if samples.shape != x.shape or not np.all(np.isfinite(samples)):
        return None
    beta = samples[_ZERO]
    about_mean = _fit(x - x.mean(axis=1, keepdims=True), samples, beta)
    if about_mean is not None or np.any(beta != 0.0):
        return about_mean
    about_zero = _fit(x, samples, beta)
    return None if about_zero is None else replace(about_zero, beta=None)


def _fit(x: Doubles, samples: Doubles, beta: Doubles) -> Norm | None:
    """Fit ``gamma x / sqrt(mean x^2 + epsilon) + beta``."""
    squares = np.mean(x**2, axis=1)
    with np.errstate(all="ignore"):
        slopes = (samples - beta) / x
    usable = (np.abs(x[_LARGE]) > 1e-3) & (np.abs(x[_TINY]) > 1e-4)
    strength = np.where(usable, np.abs(slopes[_LARGE]), 0.0)
    best = int(np.argmax(strength))
    if strength[best] == 0.0:
        return None
    # slope = gamma / sqrt(squares + epsilon) in both rows: two equations for gamma and epsilon.
    with np.errstate(all="ignore"):
        # Of a function of the rows, slopes and channels may be 0.
        ratio = (slopes[_LARGE, best] / slopes[_TINY, best]) ** 2
    if not 0.0 < ratio < 1.0:
        return None
    epsilon = (ratio * squares[_LARGE] - squares[_TINY]) / (1.0 - ratio)
    if epsilon < -1e-9 * squares[_TINY]:
        return None
    epsilon = float(f"{max(epsilon, 0.0):.5g}")
    with np.errstate(all="ignore"):
        normalised = x / np.sqrt(squares + epsilon)[:, None]
    normalised[_ZERO] = 0.0
    weights = np.abs(normalised[_LARGE:])
    rows = _LARGE + np.argmax(weights, axis=0)
    columns = np.arange(x.shape[1])
    with np.errstate(all="ignore"):
        gamma = (samples[rows, columns] - beta) / normalised[rows, columns]
        error = np.abs(samples - (gamma * normalised + beta))
    if not np.all(error <= _TOLERANCE * (1.0 + np.abs(samples))):
        return None
    return Norm(gamma, beta, epsilon)


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
    samples: Doubles
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


def _exact(weights: Sequence[Weight], fitted: Doubles, name: str) -> Weight:
    """Return the weight that was measured to be `fitted`, which has its name; else the measure."""
    for weight in weights:
        if weight.array.size not in (1, fitted.shape[-1], fitted.size):
            continue
        array = weight.array.reshape(fitted.shape if weight.array.size == fitted.size else -1)
        array = np.broadcast_to(array, fitted.shape)
        if np.allclose(array, fitted, rtol=1e-4, atol=1e-5):
            return Weight(weight.name, array)
    return Weight(weights[0].name if weights else name, fitted.astype(np.float32))
