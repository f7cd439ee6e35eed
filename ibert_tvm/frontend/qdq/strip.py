"""Take the quantisation out of an ONNX graph: a float graph, and what was taken out.

Every tensor keeps its name, and integers become the real values that they stand for:
QuantizeLinear and DequantizeLinear turn into Identity, operators that only move integers (Gather,
Reshape, Transpose ...) move the real values instead, and a quantised initialiser becomes a float
one. What is left computes what the model was before its activations were rounded, with the weights
that the file holds. The roundings are listed as edges.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import helper, numpy_helper

from ...common.types import Array, Floats, Longs
from ..onnx.reading import messages, type_name
from . import refusals
from .graph import DEQUANTIZE, MOVES, QUANTIZE, Constants, attribute, kind, label, unused_name

# The grid of a QuantizeLinear or DequantizeLinear node: which real values its integers stand for.
#
# Dequantisation follows the ONNX operator: the difference to the zero point is taken exactly, and
# multiplied by the scale in float32.

INTEGER_RANGES = {
    "int2": (-2, 1),
    "uint2": (0, 3),
    "int4": (-8, 7),
    "uint4": (0, 15),
    "int8": (-128, 127),
    "uint8": (0, 255),
    "int16": (-(2**15), 2**15 - 1),
    "uint16": (0, 2**16 - 1),
    "int32": (-(2**31), 2**31 - 1),
}
"""Smallest and largest integer by the name of an ONNX type."""


@dataclass(frozen=True, eq=False)
class Grid:
    """Scale, zero point and range of a quantised tensor.

    Parameters
    ----------
    scale
        float32, scalar (shape ()), or one per slice along `axis` (shape (N,)), or one per block.
    zero_point
        int64 of the shape of `scale`.
    dtype
        One of `INTEGER_RANGES`.
    axis
        Axis of a scale per slice or block; meaningless for a scalar.
    block
        Length of a block along `axis`; 0 where there are none.
    """

    scale: Floats
    zero_point: Longs
    dtype: str
    axis: int = 0
    block: int = field(default=0)

    @property
    def per_tensor(self) -> bool:
        """Whether one scale serves the whole tensor."""
        return self.scale.ndim == 0

    @property
    def low(self) -> int:
        """Smallest integer."""
        return INTEGER_RANGES[self.dtype][0]

    @property
    def high(self) -> int:
        """Largest integer."""
        return INTEGER_RANGES[self.dtype][1]

    @property
    def bits(self) -> int:
        """Bits of an integer."""
        return (self.high - self.low + 1).bit_length() - 1

    @property
    def usable(self) -> bool:
        """Whether every scale is finite and positive."""
        return bool((np.isfinite(self.scale) & (self.scale > 0)).all())

    def same_as(self, other: Grid) -> bool:
        """Whether both stand for the same real values, integer by integer."""
        return (
            self.dtype == other.dtype
            and self.block == other.block
            and self.scale.shape == other.scale.shape
            and (self.per_tensor or self.axis == other.axis)
            and np.array_equal(self.scale, other.scale)
            and np.array_equal(self.zero_point, other.zero_point)
        )

    def moved(self, permutation: tuple[int, ...]) -> Grid:
        """Return the grid of the tensor before a Transpose with `permutation`."""
        if self.per_tensor:
            return self
        axis = permutation[self.axis % len(permutation)]
        return Grid(self.scale, self.zero_point, self.dtype, axis, self.block)

    def spread(self, array: Array, shape: tuple[int, ...]) -> Array:
        """Broadcast the scales or zero points `array` along a tensor of `shape`.

        Raises
        ------
        ValueError
            If they do not fit the tensor.
        """
        if self.per_tensor:
            return array
        axis = self.axis % len(shape)
        if self.block:
            whole = np.repeat(array, self.block, axis=axis)
            cut = [slice(None)] * whole.ndim
            cut[axis] = slice(0, shape[axis])
            return np.broadcast_to(whole[tuple(cut)], shape)
        if array.shape != (shape[axis],):
            raise ValueError(f"{array.size} scales for {shape[axis]} slices along axis {axis}")
        return array.reshape([-1 if i == axis else 1 for i in range(len(shape))])

    def dequantize(self, integers: Array) -> Floats:
        """Real values of `integers`, float32."""
        shape = integers.shape
        wide = np.int64 if self.dtype == "int32" else np.int32
        zero_point = self.spread(self.zero_point.astype(wide), shape)
        steps = integers.astype(wide) - zero_point
        with np.errstate(over="ignore"):  # the scale of a mask of -FLT_MAX rounds beyond it
            result = steps.astype(np.float32) * self.spread(self.scale, shape)
        return np.asarray(result, np.float32)

    def quantize(self, values: Array) -> Longs:
        """Integers of real `values`, rounded half to even and saturated, int64."""
        shape = values.shape
        with np.errstate(over="ignore"):  # an infinite mask saturates
            steps = values.astype(np.float32) / self.spread(self.scale, shape)
        shifted = np.rint(steps).astype(np.float64) + self.spread(self.zero_point, shape)
        return np.clip(shifted, self.low, self.high).astype(np.int64)

    def __str__(self) -> str:
        if self.per_tensor:
            return f"{self.dtype}, scale {float(self.scale):.6g}, zero point {int(self.zero_point)}"
        what = f"blocks of {self.block}" if self.block else "slices"
        return f"{self.dtype}, {self.scale.size} scales for {what} along axis {self.axis}"


# They look at the shape of a tensor, which integers have as well.
_SHAPES = frozenset({"Shape", "Size"})
_INTEGERS = frozenset(INTEGER_RANGES)


@dataclass(frozen=True)
class Edge:
    """One rounding of an activation.

    Parameters
    ----------
    tensor
        The rounded tensor: output of the QuantizeLinear, float in the stripped graph.
    source
        The tensor that is rounded.
    node
        Name of the QuantizeLinear node.
    grid
        What it is rounded to.
    """

    tensor: str
    source: str
    node: str
    grid: Grid


@dataclass(frozen=True, eq=False)
class GivenTensor:
    """A constant that the file holds as integers.

    Parameters
    ----------
    name
        Name of the float initialiser that replaces it.
    integers
        The integers, of the file's type or another that holds them.
    grid
        What they stand for.
    """

    name: str
    integers: Array
    grid: Grid


@dataclass(frozen=True)
class StrippedModel:
    """A float model and the quantisation that it came with.

    Parameters
    ----------
    model
        The float graph.
    edges
        Roundings of activations, in graph order.
    constants
        Quantised constants by the name of their float initialiser.
    """

    model: onnx.ModelProto
    edges: tuple[Edge, ...]
    constants: dict[str, GivenTensor] = field(default_factory=dict)


def strip(model: onnx.ModelProto) -> StrippedModel:
    """Separate a QDQ model into a float model and its quantisation.

    Parameters
    ----------
    model
        With QuantizeLinear and DequantizeLinear nodes, see `qoperator.to_qdq`; not changed.

    Raises
    ------
    UnsupportedModelError
        If a scale is no constant, integers are computed with, or types or scales are none that
        stand for integers.
    """
    result = onnx.ModelProto()
    result.CopyFrom(model)
    stripper = _Stripper(result.graph)
    stripper.run()
    return StrippedModel(result, tuple(stripper.edges), stripper.given)


class _Stripper:
    def __init__(self, graph: onnx.GraphProto) -> None:
        self.graph = graph
        self.constants = Constants(graph)
        self.edges: list[Edge] = []
        self.given: dict[str, GivenTensor] = {}
        self.floats: list[onnx.TensorProto] = []
        self.taken = {name for node in graph.node for name in (*node.input, *node.output)}
        self.taken |= {tensor.name for tensor in graph.initializer}
        self.grids: dict[str, Grid] = {}
        self.ranks = {
            info.name: len(info.type.tensor_type.shape.dim)
            for info in (*graph.value_info, *graph.input, *graph.output)
            if info.type.tensor_type.HasField("shape")
        }

    def run(self) -> None:
        self._find_grids()
        self._check_uses()
        renamed: dict[str, str] = {}
        nodes: list[onnx.NodeProto] = []
        replaced: set[str] = set()
        outputs = {info.name for info in self.graph.output}
        for node in self.graph.node:
            # ONNX Runtime gives the float tensor of a quantised bias the bias's own name.
            if kind(node) == DEQUANTIZE and node.input[0] in self.constants:
                self.taken -= {node.output[0]} - outputs
        for node in self.graph.node:
            operation = kind(node)
            if operation == "Constant" and node.output[0] in self.grids:
                continue
            if operation == QUANTIZE and node.input[0] in self.constants:
                # A constant that is rounded while the model runs is rounded now.
                self._round_constant(node)
                continue
            for index, name in enumerate(node.input):
                if name in self.grids and name in self.constants and name not in renamed:
                    renamed[name] = self._float_constant(name)
                    replaced.add(name)
                if name in renamed:
                    node.input[index] = renamed[name]
            if operation == QUANTIZE:
                grid = self.grids[node.output[0]]
                self.edges.append(Edge(node.output[0], node.input[0], label(node), grid))
                nodes.append(_identity(node))
            elif operation == DEQUANTIZE:
                if node.input[0] in self.given and node.output[0] not in outputs:
                    renamed[node.output[0]] = node.input[0]
                else:
                    nodes.append(_identity(node))
            else:
                nodes.append(node)
        kept = [tensor for tensor in self.graph.initializer if tensor.name not in replaced]
        del self.graph.node[:]
        self.graph.node.extend(nodes)
        del self.graph.initializer[:]
        self.graph.initializer.extend([*kept, *self.floats])
        self._drop_unused_initialisers()
        # Types of tensors that were integers are wrong now; shapes are inferred again.
        del self.graph.value_info[:]

    # -- grids ------------------------------------------------------------------------------

    def _find_grids(self) -> None:
        """Assign a grid to every tensor of integers: from its QuantizeLinear or its readers."""
        for node in self.graph.node:
            if kind(node) == QUANTIZE:
                self._assign(node, node.output[0], self._grid(node))
        for node in reversed(self.graph.node):
            if kind(node) == DEQUANTIZE:
                self._assign(node, node.input[0], self._grid(node))
            elif kind(node) in MOVES:
                for output in node.output:
                    if output in self.grids:
                        self._assign(node, node.input[0], self._before(node, self.grids[output]))

    def _assign(self, node: onnx.NodeProto, tensor: str, grid: Grid) -> None:
        known = self.grids.setdefault(tensor, grid)
        if not known.same_as(grid):
            raise refusals.changed_grid(label(node), tensor, str(known), str(grid))

    def _before(self, node: onnx.NodeProto, grid: Grid) -> Grid:
        """The grid of what `node` moves, given that of its result."""
        if grid.per_tensor or node.op_type == "Identity":
            return grid
        if node.op_type == "Transpose":
            permutation = tuple(attribute(node, "perm", ()))
            if permutation:
                return grid.moved(permutation)
        raise refusals.odd_scales(
            f"node {label(node)}", f"{node.op_type} moves integers with one scale per slice"
        )

    def _grid(self, node: onnx.NodeProto) -> Grid:
        where = label(node)
        scale_name = node.input[1]
        zero_name = node.input[2] if len(node.input) > 2 else ""
        for name in (scale_name, zero_name) if zero_name else (scale_name,):
            if name not in self.constants:
                raise refusals.scale_is_computed(node.op_type, where, name)
        dtype = self._dtype(node, zero_name)
        if dtype not in _INTEGERS:
            raise refusals.strange_type(where, dtype)
        scale = np.asarray(self.constants[scale_name], np.float32)
        zero = np.zeros(scale.shape, np.int64)
        if zero_name:
            zero = np.asarray(self.constants[zero_name]).astype(np.int64)
        if zero.size == 1:
            zero = np.broadcast_to(zero.reshape(()), scale.shape)
        if scale.size == zero.size == 1:
            scale, zero = scale.reshape(()), zero.reshape(())
        if zero.shape != scale.shape:
            raise refusals.odd_scales(
                f"node {where}", f"{scale.size} scales and {zero.size} zero points"
            )
        axis = int(attribute(node, "axis", 1))
        rank = self.ranks.get(node.input[0], self.ranks.get(node.output[0], 0))
        if node.input[0] in self.constants:
            rank = self.constants[node.input[0]].ndim
        if rank and scale.ndim != 0:
            axis %= rank
        return Grid(scale, zero, dtype, axis, int(attribute(node, "block_size", 0)))

    def _dtype(self, node: onnx.NodeProto, zero_name: str) -> str:
        if zero_name:
            return self.constants.dtype(zero_name)
        if kind(node) == QUANTIZE:
            wanted = int(attribute(node, "output_dtype", 0))
            return type_name(wanted) if wanted else "uint8"
        name = node.input[0]
        if name in self.constants:
            return self.constants.dtype(name)
        return self.grids[name].dtype if name in self.grids else "uint8"

    def _check_uses(self) -> None:
        """Refuse arithmetic on integers, which would change its meaning on real values."""
        for node in self.graph.node:
            operation = kind(node)
            if operation in (QUANTIZE, DEQUANTIZE) or operation in _SHAPES:
                continue
            for index, name in enumerate(node.input):
                if name not in self.grids or (operation in MOVES and index == 0):
                    continue
                raise refusals.no_integer_use(node.op_type, label(node), name)

    # -- constants --------------------------------------------------------------------------

    def _float_constant(self, name: str) -> str:
        """Replace the integers `name` by a float initialiser; return its name."""
        integers = np.asarray(self.constants[name])
        if integers.dtype.kind not in "iu":  # types of fewer than 8 bits are not NumPy's own
            integers = integers.astype(np.int8)
        base = name.removesuffix("_quantized")
        new = name if base == name else unused_name(base, self.taken)
        try:
            self._keep(new, integers, self.grids[name])
        except ValueError as error:
            raise refusals.odd_scales(f"constant {name}", str(error)) from None
        return new

    def _round_constant(self, node: onnx.NodeProto) -> None:
        """Replace a QuantizeLinear of a constant by its result."""
        grid = self.grids[node.output[0]]
        values = np.asarray(self.constants[node.input[0]], np.float32)
        try:
            self._keep(node.output[0], grid.quantize(values).astype(np.int32), grid)
        except ValueError as error:
            raise refusals.odd_scales(f"node {label(node)}", str(error)) from None

    def _keep(self, name: str, integers: Array, grid: Grid) -> None:
        """Add a float initialiser, and note the integers that it stands for."""
        floats = _finite(grid.dequantize(integers))
        self.floats.append(numpy_helper.from_array(floats, name))
        self.given[name] = GivenTensor(name, integers, grid)

    def _drop_unused_initialisers(self) -> None:
        nodes = (part for part in messages(self.graph) if isinstance(part, onnx.NodeProto))
        used = {name for node in nodes for name in node.input}
        used |= {info.name for info in self.graph.output}
        kept = [tensor for tensor in self.graph.initializer if tensor.name in used]
        del self.graph.initializer[:]
        self.graph.initializer.extend(kept)


def _finite(values: Floats) -> Floats:
    """The scale of a mask of -FLT_MAX may round beyond it."""
    limit = np.finfo(np.float32).max
    return np.ascontiguousarray(np.clip(values, -limit, limit))


def _identity(node: onnx.NodeProto) -> onnx.NodeProto:
    return helper.make_node("Identity", [node.input[0]], [node.output[0]], node.name)
