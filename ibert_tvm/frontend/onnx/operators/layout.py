"""Translations of operators that move, pick, look up or make data."""

from __future__ import annotations

import itertools

import numpy as np
from tvm import relax
from tvm.relax import op

from ....common.types import Array
from ..translator import Node, Result, Translator, operator, unary
from ..values import Known, Operand, Traced, Untranslatable, constant

_FAR = 2**62
_WRAP = "wrap"
"""ONNX counts negative indices from the end."""


@operator("Identity", "Dropout")
def _identity(_t: Translator, node: Node) -> Result:
    value = node.operand(0)
    if isinstance(value, Known) and value.name and node.proto.output:
        # Exporters store equal parameters once and give the others their names this way.
        return [Known(value.array, str(node.proto.output[0]))]
    return [value]


@operator("Shape")
def _shape(_t: Translator, node: Node) -> Known:
    shape = node.traced().shape
    first, last = node.attributes.get("start", 0), node.attributes.get("end", len(shape))
    return Known(np.array(shape[slice(first, last)], np.int64))


@operator("Size")
def _size(_t: Translator, node: Node) -> Known:
    return Known(np.array(np.prod(node.traced().shape, dtype=np.int64)))


@unary("Reshape")
def _reshape(t: Translator, node: Node, x: Traced) -> Traced:
    shape = [int(extent) for extent in node.required(1, "shape")]
    if not node.attributes.get("allowzero", 0):
        if 0 in shape[len(x.shape) :]:
            raise Untranslatable(f"the shape {tuple(shape)} keeps an extent that {x.shape} lacks")
        shape = [x.shape[i] if extent == 0 else extent for i, extent in enumerate(shape)]
    return reshape(t, x, shape)


def reshape(t: Translator, x: Traced, shape: list[int]) -> Traced:
    """Reshape `x`; one extent may be -1."""
    if -1 in shape:
        known = int(np.prod([extent for extent in shape if extent != -1], dtype=np.int64))
        total = int(np.prod(x.shape, dtype=np.int64))
        if known == 0 or total % known:
            raise Untranslatable(f"the shape {tuple(shape)} does not hold {x.shape}")
        shape = [total // known if extent == -1 else extent for extent in shape]
    if np.prod(shape, dtype=np.int64) != np.prod(x.shape, dtype=np.int64):
        raise Untranslatable(
            f"the shape {tuple(shape)} does not hold {x.shape}: sizes of the exported example are "
            "written into it"
        )
    return t.emit(op.reshape(x.var, shape), x)


@unary("Flatten")
def _flatten(t: Translator, node: Node, x: Traced) -> Traced:
    axis = int(node.attributes.get("axis", 1)) % (len(x.shape) + 1)
    return reshape(t, x, [int(np.prod(x.shape[:axis], dtype=np.int64)), -1])


@unary("Transpose")
def _transpose(t: Translator, node: Node, x: Traced) -> Traced:
    axes = node.attributes.get("perm")
    return transpose(t, x, [int(axis) for axis in axes] if axes is not None else None)


def transpose(t: Translator, x: Traced, axes: list[int] | None) -> Traced:
    """Reorder the axes of `x`; reverse them for None."""
    return t.emit(op.permute_dims(x.var, axes), x)


def transpose_last(t: Translator, x: Operand) -> Operand:
    """Exchange the last two axes."""
    if isinstance(x, Known):
        return Known(np.swapaxes(x.array, -1, -2), x.name)
    rank = len(x.shape)
    return transpose(t, x, [*range(rank - 2), rank - 1, rank - 2])


@unary("Unsqueeze")
def _unsqueeze(t: Translator, node: Node, x: Traced) -> Traced:
    axes = node.integers(1, "axes")
    if axes is None:
        raise Untranslatable("it names no axes")
    return t.emit(op.expand_dims(x.var, axes), x)


@unary("Squeeze")
def _squeeze(t: Translator, node: Node, x: Traced) -> Traced:
    axes = node.integers(1, "axes")
    if axes is None:
        axes = [axis for axis, extent in enumerate(x.shape) if extent == 1]
    return t.emit(op.squeeze(x.var, axes), x)


@unary("Expand")
def _expand(t: Translator, node: Node, x: Traced) -> Traced:
    wanted = tuple(int(extent) for extent in node.required(1, "shape"))
    shape = np.broadcast_shapes(x.shape, wanted)
    return x if shape == x.shape else t.emit(op.broadcast_to(x.var, shape), x)


@unary("Tile")
def _tile(t: Translator, node: Node, x: Traced) -> Traced:
    repeats = node.integers(1, "repeats") or []
    if all(count == 1 for count in repeats):
        return x
    if all(x.shape[axis] == 1 for axis, count in enumerate(repeats) if count > 1):
        shape = [a * b for a, b in zip(x.shape, repeats, strict=True)]
        return t.emit(op.broadcast_to(x.var, shape), x)
    return t.emit(op.tile(x.var, repeats), x)


@operator("Concat")
def _concat(t: Translator, node: Node) -> Result:
    operands = node.tensors(len(node.operands))
    if len(operands) == 1:
        return [operands[0]]
    tokens = all(item.tokens for item in operands if isinstance(item, Traced))
    parts = [t.expr(node, item, weight=not tokens) for item in operands]
    return t.emit(op.concat(parts, int(node.attributes["axis"])), *operands)


@unary("Pad")
def _pad(t: Translator, node: Node, x: Traced) -> Traced:
    rank = len(x.shape)
    widths, value = node.integers(1, "pads"), node.constant(2, "value")
    axes = node.integers(3, "axes") if node.operand(3) is not None else range(rank)
    if widths is None or axes is None or len(widths) != 2 * len(axes):
        raise Untranslatable("its pads, or the axes that they belong to, are not known")
    mode = bytes(node.attributes.get("mode", b"constant")).decode()
    if mode != "constant":
        raise Untranslatable(
            f"it makes a border by the mode {mode}: borders of zeros beside a convolution have a "
            "form (padding_mode='zeros')"
        )
    number = 0.0 if value is None else float(np.asarray(value).reshape(-1)[0])
    pairs = [0] * (2 * rank)
    for place, axis in enumerate(axes):
        first = 2 * (axis % rank)
        pairs[first : first + 2] = widths[place], widths[place + len(axes)]
    return t.emit(op.nn.pad(x.var, pairs, "constant", number), x)


@unary("Split")
def _split(t: Translator, node: Node, x: Traced) -> list[Traced]:
    axis = int(node.attributes.get("axis", 0)) % len(x.shape)
    sizes = node.integers(1, "split")
    if sizes is None:
        count = int(node.attributes.get("num_outputs", len(node.proto.output)))
        size = -(-x.shape[axis] // count)
        sizes = [size] * (count - 1) + [x.shape[axis] - size * (count - 1)]
    return split(t, x, sizes, axis)


def split(t: Translator, x: Traced, sizes: list[int], axis: int) -> list[Traced]:
    """Cut `x` along an axis into pieces of these sizes."""
    bounds = np.cumsum([0, *sizes]).tolist()
    return [
        t.emit(op.strided_slice(x.var, [axis], [first], [last]), x)
        for first, last in itertools.pairwise(bounds)
    ]


@operator("Slice")
def _slice(t: Translator, node: Node) -> Result:
    (value,) = node.tensors(1)
    starts, ends = node.required(1, "starts"), node.required(2, "ends")
    shape = value.shape
    axes = node.constant(3, "axes")
    steps = node.constant(4, "steps")
    places = list(range(len(starts))) if axes is None else [int(a) % len(shape) for a in axes]
    index: list[slice] = [slice(None)] * len(shape)
    for position, axis in enumerate(places):
        first, last = (
            None if abs(int(bound[position])) > _FAR else int(bound[position])
            for bound in (starts, ends)
        )
        step = 1 if steps is None else int(steps[position])
        if step < 0 and isinstance(value, Traced):
            raise Untranslatable("it goes backwards")
        index[axis] = slice(first, last, step)
    if isinstance(value, Known):
        return _known_slice(t, node, value, index)
    bounds = [item.indices(extent) for item, extent in zip(index, shape, strict=True)]
    used = [axis for axis, extent in enumerate(shape) if bounds[axis] != (0, extent, 1)]
    if not used:
        return [value]
    begins, stops, strides = (list(x) for x in zip(*(bounds[a] for a in used), strict=True))
    return t.emit(op.strided_slice(value.var, used, begins, stops, strides), value)


def _known_slice(t: Translator, node: Node, value: Known, index: list[slice]) -> Result:
    """Cut a constant. Rows of a table up to the probe's length are positions, and look-ups."""
    array = value.array[tuple(index)]
    rows = [
        i for i, (a, b) in enumerate(zip(value.array.shape, array.shape, strict=True)) if a != b
    ]
    if (
        value.name
        and array.dtype.kind == "f"
        and len(rows) == 1
        and rows[0] == array.ndim - 2
        and array.shape[rows[0]] == t.shape.seq_len
        and array.size == t.shape.seq_len * array.shape[-1]
    ):
        first = index[rows[0]].indices(value.array.shape[rows[0]])[0]
        table = Known(value.array.reshape(-1, array.shape[-1]), value.name)
        ids = Known(np.arange(first, first + t.shape.seq_len).reshape(array.shape[:-1]))
        return look_up(t, node, table, ids)
    return [Known(array, value.name)]


def look_up(t: Translator, node: Node, table: Known, ids: Operand) -> Traced:
    """Emit the look-up of rows of a table of weights."""
    index = ids.array if isinstance(ids, Known) else _wide(t, ids).var
    places = index if isinstance(index, relax.Var) else constant(np.asarray(index, np.int64))
    return t.emit(op.take(t.expr(node, table), places, axis=0, mode=_WRAP), ids)


@operator("Gather")
def _gather(t: Translator, node: Node) -> Traced:
    data, ids = node.tensors(2)
    axis = int(node.attributes.get("axis", 0))
    if isinstance(data, Known) and isinstance(ids, Traced):
        table = t.expr(node, data, weight=data.array.dtype.kind == "f" and data.array.ndim > 1)
        return t.emit(op.take(table, _wide(t, ids).var, axis=axis, mode=_WRAP), ids, data)
    if isinstance(data, Known):
        return look_up(t, node, data, ids)
    if isinstance(ids, Traced):
        return t.emit(op.take(data.var, _wide(t, ids).var, axis=axis, mode=_WRAP), data, ids)
    index = _positive(ids.array, data.shape[axis])
    return t.emit(op.take(data.var, constant(index), axis=axis, mode=_WRAP), data)


def _wide(t: Translator, ids: Traced) -> Traced:
    return ids if ids.dtype == "int64" else t.emit(op.astype(ids.var, "int64"), ids)


def _positive(index: Array, extent: int) -> Array:
    """Return indices that count from the front; ONNX counts negative ones from the end."""
    return np.where(index < 0, index + extent, index).astype(np.int64)


@operator("GatherElements")
def _gather_elements(t: Translator, node: Node) -> Traced:
    data, ids = node.tensors(2)
    axis = int(node.attributes.get("axis", 0))
    parts = [t.expr(node, item, weight=False) for item in (data, ids)]
    return t.emit(op.gather_elements(*parts, axis=axis), data, ids)


@operator("GatherND")
def _gather_nd(t: Translator, node: Node) -> Traced:
    data, ids = node.tensors(2)
    parts = [t.expr(node, item, weight=False) for item in (data, ids)]
    return t.emit(
        op.gather_nd(*parts, batch_dims=int(node.attributes.get("batch_dims", 0))), data, ids
    )


@unary("CumSum")
def _cumsum(t: Translator, node: Node, x: Traced) -> Traced:
    axis = node.constant(1, "axis")
    if axis is None or node.attributes.get("reverse", 0):
        raise Untranslatable("it sums backwards, or along no axis")
    exclusive = bool(node.attributes.get("exclusive", 0))
    return t.emit(op.cumsum(x.var, int(axis.reshape(-1)[0]), exclusive=exclusive), x)


@unary("Trilu")
def _trilu(t: Translator, node: Node, x: Traced) -> Traced:
    offset = node.constant(1, "k")
    make = op.triu if node.attributes.get("upper", 1) else op.tril
    return t.emit(make(x.var, int(offset.reshape(-1)[0]) if offset is not None else 0), x)


@unary("OneHot")
def _one_hot(t: Translator, node: Node, ids: Traced) -> Traced:
    depth, values = node.constant(1, "depth"), node.constant(2, "values")
    axis = int(node.attributes.get("axis", -1))
    if depth is None or values is None or axis not in (-1, len(ids.shape)):
        raise Untranslatable("its depth and values are needed, along the last axis")
    count = int(depth.reshape(-1)[0])
    wide = _wide(t, ids)
    columns = constant(np.arange(count))
    same = op.equal(op.expand_dims(wide.var, [-1]), columns)
    off, on = (constant(value) for value in values)
    return t.emit(op.where(t.emit(same, ids).var, on, off), ids)
