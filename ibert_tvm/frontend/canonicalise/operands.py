"""Reading the operands and attributes of Relax calls as plain Python values."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax, tirx

from ...common.types import Array
from . import functions
from .mismatch import Mismatch


@dataclass(frozen=True)
class Table:
    """Where a weight with one row per token of the probe shape was cut out: a table of positions.

    Parameters
    ----------
    array
        The whole table [positions, channels].
    offset
        Row of the first token.
    """

    array: Array
    offset: int


def integer(value: object) -> int:
    """Return a Python int of an int, an IntImm or a scalar constant."""
    match value:
        case int():
            return value
        case tirx.IntImm():
            return int(value.value)
    raise Mismatch(f"{value} is not a constant integer")


def integers(value: Iterable[object]) -> list[int]:
    """Return Python ints of a shape expression, a tuple or an array of constants."""
    match value:
        case relax.ShapeExpr():
            value = value.values
        case relax.Tuple():
            value = value.fields
    return [integer(item) for item in value]


def optional_axes(value: object) -> list[int] | None:
    """Return axes as a list; None stays None, one integer becomes a list of one."""
    match value:
        case None:
            return None
        case int() | tirx.IntImm():
            return [integer(value)]
    return integers(value)  # type: ignore[arg-type]


def static_shape(variable: relax.Expr) -> tuple[int, ...]:
    """Return the shape of a tensor as ints.

    Raises
    ------
    Mismatch
        If a dimension is symbolic, or `variable` is no tensor.
    """
    kind = variable.ty
    if not isinstance(kind, relax.TensorType) or kind.shape is None:
        raise Mismatch(f"its type is {kind}, not a tensor of known shape")
    return tuple(integer(extent) for extent in kind.shape.values)


def _slice(call: relax.Call, array: Array) -> Array:
    axes, begin, end = (integers(argument) for argument in call.args[1:4])
    strides = integers(call.args[4]) if len(call.args) > 4 else [1] * len(axes)
    index: list[Any] = [slice(None)] * array.ndim
    for axis, first, last, step in zip(axes, begin, end, strides, strict=True):
        index[axis] = slice(first, last, step)
    return array[tuple(index)]


def _squeeze(call: relax.Call, array: Array) -> Array:
    axes = optional_axes(call.attrs.axis)
    return np.squeeze(array, None if axes is None else tuple(axes))


def _permute(call: relax.Call, array: Array) -> Array:
    axes = optional_axes(call.attrs.axes)
    return np.transpose(array, axes)


def _where(_call: relax.Call, condition: Array, *chosen: Array) -> Array:
    yes, no = chosen
    return np.where(condition, yes, no)


def _split(call: relax.Call, array: Array) -> list[Array]:
    bounds = split_bounds(call, array.shape)
    axis = integer(call.attrs.axis) % array.ndim
    return [array.take(range(*bound), axis=axis) for bound in itertools.pairwise(bounds)]


def split_bounds(call: relax.Call, shape: Sequence[int]) -> list[int]:
    """Return where the parts of a ``relax.split`` of a tensor begin, and the last ends."""
    extent = shape[integer(call.attrs.axis) % len(shape)]
    places = call.attrs.indices_or_sections
    try:
        sections = integer(places)
    except Mismatch:
        return [0, *integers(places), extent]
    size = -(-extent // sections)
    return [min(i * size, extent) for i in range(sections + 1)]


def _reduced(reduce: Callable[..., Array]) -> Callable[[relax.Call, Array], Array]:
    def compute(call: relax.Call, array: Array) -> Array:
        axes = optional_axes(call.attrs.axis)
        over = None if axes is None else tuple(axes)
        return np.asarray(reduce(array, axis=over, keepdims=bool(call.attrs.keepdims)), array.dtype)

    return compute


def _layer_norm(call: relax.Call, x: Array, gamma: Array, beta: Array) -> Array:
    axes = tuple(optional_axes(call.attrs.axes) or [-1])
    wide = x.astype(np.float64)
    centred = wide - wide.mean(axis=axes, keepdims=True)
    variance = np.square(centred).mean(axis=axes, keepdims=True)
    normalised = centred / np.sqrt(variance + float(call.attrs.epsilon))
    return (normalised * gamma + beta).astype(x.dtype)


def _resize(call: relax.Call, array: Array) -> Array:
    """A table of positions of an image, as models resize it to the image that they get."""
    layout, size = str(call.attrs.layout), integers(call.args[1])
    if [array.shape[layout.index(axis)] for axis in "HW"] != size:
        raise Mismatch(
            f"it resizes weights of shape {array.shape} to {size}; give the source weights for "
            "images of this size"
        )
    return array


def _elementwise(name: str) -> Callable[..., Array]:
    compute = functions.ELEMENTWISE[name]
    return lambda _call, *arrays: np.asarray(compute(*arrays))


_ELEMENTWISE = (
    *("abs", "cos", "exp", "negative", "rsqrt", "sin", "sqrt", "square"),
    *("add", "divide", "maximum", "minimum", "multiply", "power", "subtract"),
)
"""What exporters apply to weights."""

_FOLD: dict[str, Callable[..., Any]] = {
    **{f"relax.{name}": _elementwise(f"relax.{name}") for name in _ELEMENTWISE},
    "relax.astype": lambda c, a: a.astype(str(c.attrs.dtype)),
    "relax.concat": lambda c, *arrays: np.concatenate(arrays, axis=integer(c.attrs.axis)),
    "relax.broadcast_to": lambda c, a: np.broadcast_to(a, integers(c.args[1])),
    "relax.equal": lambda _c, a, b: a == b,
    "relax.image.resize2d": _resize,
    "relax.expand_dims": lambda c, a: np.expand_dims(a, tuple(integers(c.attrs.axis))),
    "relax.matmul": lambda _c, a, b: a @ b,
    "relax.max": _reduced(np.max),
    "relax.mean": _reduced(np.mean),
    "relax.min": _reduced(np.min),
    "relax.nn.layer_norm": _layer_norm,
    "relax.permute_dims": _permute,
    "relax.reshape": lambda c, a: a.reshape(integers(c.args[1])),
    "relax.split": _split,
    "relax.squeeze": _squeeze,
    "relax.strided_slice": _slice,
    "relax.sum": _reduced(np.sum),
    "relax.tile": lambda c, a: np.tile(a, integers(c.attrs.repeats)),
    "relax.where": _where,
}


def folds(name: str) -> bool:
    """Tell whether `fold` computes the operator of that name."""
    return name in _FOLD


def fold(call: relax.Call, arrays: list[Array]) -> list[Array]:
    """Compute an operator whose tensor operands are known; views where NumPy gives views.

    Parameters
    ----------
    call
        The operator.
    arrays
        Its tensor operands.

    Returns
    -------
    list of numpy.ndarray
        Its results.

    Raises
    ------
    Mismatch
        If the operator is not one of those that exporters apply to weights.
    """
    compute = _FOLD.get(call.op.name)
    if compute is None:
        raise Mismatch(
            f"it computes on weights, and only {', '.join(sorted(_FOLD))} are folded into them"
        )
    result = compute(call, *arrays)
    return result if isinstance(result, list) else [result]


def table_of(call: relax.Call, array: Array, tokens: int) -> Table | None:
    """Tell whether a slice of a weight takes one row per token of a longer table.

    Parameters
    ----------
    call
        ``relax.strided_slice``.
    array
        What is sliced.
    tokens
        Length of the probe shape.

    Returns
    -------
    Table or None
        The table, if it is one.
    """
    axes, begin, end = (integers(argument) for argument in call.args[1:4])
    cut = [
        (axis % array.ndim, first, min(last, array.shape[axis]))
        for axis, first, last in zip(axes, begin, end, strict=True)
        if (first, min(last, array.shape[axis])) != (0, array.shape[axis])
    ]
    if len(cut) != 1 or array.ndim < 2:
        return None
    axis, first, last = cut[0]
    if axis != array.ndim - 2 or last - first != tokens or array.size != np.prod(array.shape[-2:]):
        return None
    return Table(array.reshape(array.shape[-2:]), first)
