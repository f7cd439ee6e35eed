"""From a quantised ONNX model to a canonical model with the scales that it came with."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
import tvm
from tvm import relax

from ibert_tvm.relay_passes.canonical import canonical_calls, main_function, matrix_of, value_name

from ...common.types import Array, Doubles, Floats, Ints, Weights
from ..model import CanonicalModel, EdgeUse, GivenMatrix, GivenQuantization, GivenReader, GivenScale
from ..onnx.importing import import_onnx_model
from ..onnx.reading import without_functions
from ..report import ShownTensor
from . import refusals
from .graph import MOVES, label
from .qoperator import to_qdq
from .strip import Edge, GivenTensor, StrippedModel, strip

# Which canonical value every rounding of the source belongs to.
#
# The importer says of every source tensor which canonical value it shows, if any. A rounding counts
# for a reader of the value when it lies on the way from the value's first tensor to that reader,
# past reshapes, transposes and slices. Everything else lies inside an operator that the integer
# program computes in one piece (a matrix product before its bias, the steps of GELU, attention
# scores), or depends on the inputs only: a mask, whose scale is often beyond use (padding makes it
# 1e36).

_PRODUCTS = frozenset(
    {"Attention", "FusedMatMul", "Gemm", "MatMul", "MultiHeadAttention", "PackedAttention"}
)
_SHAPES = frozenset({"Shape", "Size"})


@dataclass(frozen=True)
class Placement:
    """Result of `Placer.run`.

    Attributes
    ----------
    readers
        By canonical name.
    uses
        What became of every edge.
    tensors
        First tensor of every canonical value.
    """

    readers: dict[str, tuple[GivenReader, ...]]
    uses: tuple[EdgeUse, ...]
    tensors: dict[str, str]


class Placer:
    """Assigns the edges of one stripped model to canonical values.

    Parameters
    ----------
    stripped
        The float graph with one Identity per edge.
    shown
        Which tensors show which canonical values.
    channels
        Extent of the last axis of every canonical value.
    """

    def __init__(
        self, stripped: StrippedModel, shown: Iterable[ShownTensor], channels: dict[str, int]
    ) -> None:
        graph = stripped.model.graph
        self.edges = {edge.tensor: edge for edge in stripped.edges}
        self.channels = channels
        self.outputs = [info.name for info in graph.output]
        self.producer: dict[str, onnx.NodeProto] = {}
        self.consumers: dict[str, list[onnx.NodeProto]] = {}
        for node in graph.node:
            self.producer.update(dict.fromkeys(node.output, node))
            for name in dict.fromkeys(node.input):
                self.consumers.setdefault(name, []).append(node)
        self.shown = {item.tensor: item for item in shown if item.value in channels}
        self.order = [name for node in graph.node for name in node.output if name in self.shown]
        self.weights = {item.name for item in graph.initializer if len(item.dims) > 1}
        self._used: dict[str, str] = {}  # edge → value
        self._superseded: dict[str, str] = {}

    def run(self) -> Placement:
        """Assign every edge.

        Raises
        ------
        UnsupportedModelError
            If an edge that belongs to a value has scales along an axis that is not its last.
        ModelSourceError
            If such an edge has a scale that stands for nothing.
        """
        readers: dict[str, list[GivenReader]] = {name: [] for name in self.channels}
        tensors: dict[str, str] = {}
        for tensor in self.order:
            value = self.shown[tensor].value
            tensors.setdefault(value, tensor)
            for node in self.consumers.get(tensor, []):
                if self._reads(node, value):
                    scale = self._scale_before(tensor)
                    product = node.op_type in _PRODUCTS
                    readers[value].append(GivenReader(label(node), product, scale))
            if tensor in self.outputs:
                readers[value].append(GivenReader("output", False, self._scale_before(tensor)))
        uses = tuple(self._use(edge) for edge in self.edges.values())
        return Placement({k: tuple(v) for k, v in readers.items()}, uses, tensors)

    def _reads(self, node: onnx.NodeProto, value: str) -> bool:
        """Whether `node` computes something from the value, instead of showing it again."""
        if node.op_type in _SHAPES:
            return False
        return not any(
            name in self.shown and self.shown[name].value == value for name in node.output
        )

    def _scale_before(self, tensor: str) -> GivenScale | None:
        """The last rounding on the way from the value to `tensor`; notes the earlier ones."""
        value = self.shown[tensor].value
        found: list[Edge] = []
        current: str | None = tensor
        while current is not None:
            if current in self.edges:
                found.append(self.edges[current])
            current = self._origin(current, value)
        for edge in found:
            last = found[0]
            if edge is last or edge.grid.same_as(last.grid):
                self._used.setdefault(edge.tensor, value)
            else:
                self._superseded.setdefault(edge.tensor, value)
        return self._given(found[0], tensor) if found else None

    def _origin(self, tensor: str, value: str) -> str | None:
        """The tensor that `tensor` is a view of; None at the value's first tensor."""
        node = self.producer.get(tensor)
        if node is None:
            return None
        for name in node.input:
            if name in self.shown and self.shown[name].value == value:
                return str(name)
        source = str(node.input[0]) if node.op_type in MOVES and node.input else ""
        # A fused tensor that is split later shows no value itself; its rounding counts for all.
        return source if source in self.producer and source not in self.shown else None

    def _given(self, edge: Edge, tensor: str) -> GivenScale:
        grid = edge.grid
        if not grid.usable:
            bad = grid.scale[~(np.isfinite(grid.scale) & (grid.scale > 0))].ravel()
            raise refusals.unusable_scale(edge.node, edge.source, float(bad[0]))
        item = self.shown.get(edge.tensor, self.shown[tensor])
        scale = np.asarray(grid.scale, np.float64) / abs(item.factor)
        zero_point, low, high = grid.zero_point, grid.low, grid.high
        if item.factor < 0:
            zero_point, low, high = -zero_point, -high, -low
        if not grid.per_tensor:
            width = self.channels[item.value]
            if grid.block or grid.axis not in (2, -1) or grid.scale.shape != (width,):
                raise refusals.odd_scales(
                    f"node {edge.node}",
                    f"{edge.source} has {grid.scale.size} scales along axis {grid.axis}, and the "
                    f"value {item.value} has {width} channels along its last axis",
                )
        return GivenScale(scale, zero_point, low, high, edge.source)

    # -- what became of an edge ---------------------------------------------------------------

    def _use(self, edge: Edge) -> EdgeUse:
        def use(kind: str, value: str = "") -> EdgeUse:
            return EdgeUse(edge.source, edge.node, str(edge.grid), kind, value)

        if edge.tensor in self._used:
            return use("value", self._used[edge.tensor])
        if edge.tensor in self._superseded:
            return use("superseded", self._superseded[edge.tensor])
        if not self._search(edge.source, self._inputs_of, {*self.shown, *self.weights}):
            return use("inputs")
        reader = self._search(edge.tensor, self._outputs_of, self.shown)
        return use("inside", self.shown[reader].value) if reader else use("unread")

    def _search(
        self, start: str, neighbours: Callable[[str], list[str]], wanted: Collection[str]
    ) -> str:
        """The first of some tensors met from `start`, breadth first; empty if there is none."""
        seen, wave = {start}, [start]
        while wave:
            for tensor in wave:
                if tensor in wanted:
                    return tensor
            wave = [name for tensor in wave for name in neighbours(tensor) if name not in seen]
            seen.update(wave)
        return ""

    def _inputs_of(self, tensor: str) -> list[str]:
        node = self.producer.get(tensor)
        return [] if node is None or node.op_type in _SHAPES else list(node.input)

    def _outputs_of(self, tensor: str) -> list[str]:
        return [
            name
            for node in self.consumers.get(tensor, [])
            if node.op_type not in _SHAPES
            for name in node.output
        ]


# The integers of the source's weights in the matrices of the canonical module.
#
# Importers transpose, slice and scale weights on the way to canonical form. Instead of following
# every step, rows are recognised by their content: a row of a canonical matrix that equals a row
# (or a column) of a dequantised tensor, up to one factor for the whole matrix, has the integers and
# the scale of that row.

_RELATIVE = 1e-6


@dataclass(frozen=True, eq=False)
class _Rows:
    """One orientation of a given tensor: views of its floats and integers, a scale per row."""

    tensor: str
    values: Floats
    integers: Array
    zero_point: Ints
    scale: Doubles

    def steps(self, rows: Any = slice(None)) -> Ints:
        """Integers of some rows, counted from their zero points."""
        return self.integers[rows].astype(np.int32) - self.zero_point[rows][..., None]


class MatrixIndex:
    """Finds rows of the source's quantised matrices.

    Parameters
    ----------
    given
        Quantised constants; those that are no matrices, or have no scale per row in either
        orientation, take no part.
    """

    def __init__(self, given: Iterable[GivenTensor]) -> None:
        self._by_width: dict[int, list[_Rows]] = {}
        for tensor in given:
            shape = _matrix_shape(tensor.integers)
            for rows in _orientations(tensor, shape) if shape is not None else []:
                self._by_width.setdefault(rows.values.shape[1], []).append(rows)
        self._lookup: dict[int, dict[bytes, list[tuple[_Rows, int]]]] = {}

    def find(self, matrix: Floats, hint: str = "") -> GivenMatrix | None:
        """Return the integers of a canonical matrix.

        Parameters
        ----------
        matrix
            float32 [N, K].
        hint
            Name of the source's array that it comes from, if known: preferred among equal rows.

        Returns
        -------
        GivenMatrix or None
            None if no row is found: the source holds the matrix as floats, or with scales that
            change within the rows.
        """
        scaled = self._scaled(matrix)
        if scaled is not None:
            return scaled
        lookup = self._rows_of_width(matrix.shape[1])
        integers = np.zeros(matrix.shape, np.int32)
        scale = np.ones(len(matrix))
        found = np.zeros(len(matrix), np.bool_)
        tensor = ""
        for index, row in enumerate(np.ascontiguousarray(matrix, np.float32)):
            candidates = lookup.get(row.tobytes(), [])
            if not candidates:
                continue
            rows, at = min(candidates, key=lambda item: item[0].tensor not in (hint, tensor))
            integers[index], scale[index], found[index] = rows.steps(at), rows.scale[at], True
            tensor = rows.tensor
        return GivenMatrix(integers, scale, found, tensor) if tensor else None

    def _rows_of_width(self, width: int) -> dict[bytes, list[tuple[_Rows, int]]]:
        if width not in self._lookup:
            table: dict[bytes, list[tuple[_Rows, int]]] = {}
            for rows in self._by_width.get(width, []):
                for index, row in enumerate(rows.values):
                    table.setdefault(row.tobytes(), []).append((rows, index))
            self._lookup[width] = table
        return self._lookup[width]

    def _scaled(self, matrix: Floats) -> GivenMatrix | None:
        """Match a whole matrix up to one factor: exporters multiply weights by a scale."""
        for rows in self._by_width.get(matrix.shape[1], []):
            if rows.values.shape != matrix.shape:
                continue
            at = int(np.abs(rows.values).argmax())
            largest = float(rows.values.flat[at])
            factor = float(matrix.flat[at]) / largest if largest else 0.0
            if not factor or not np.isfinite(factor):
                continue
            limit = _RELATIVE * abs(largest * factor)
            # One row tells nearly all other matrices apart.
            if all(
                np.abs(rows.values[part] * np.float64(factor) - matrix[part]).max() <= limit
                for part in (slice(0, 1), slice(None))
            ):
                # Exactly 1 must not become 1 + an ulp: the scale would differ from the source's.
                exact = factor if not np.array_equal(rows.values, matrix) else 1.0
                sign = int(np.sign(exact))
                return GivenMatrix(
                    rows.steps() * np.int32(sign),
                    rows.scale * abs(exact),
                    np.ones(len(matrix), np.bool_),
                    rows.tensor,
                )
        return None


def _matrix_shape(array: Array) -> tuple[int, int] | None:
    """Shape of a matrix, also of one that is broadcast over a batch; None for anything else."""
    shape = array.shape
    while len(shape) > 2 and shape[0] == 1:
        shape = shape[1:]
    return (shape[0], shape[1]) if len(shape) == 2 and array.size else None


def _orientations(tensor: GivenTensor, shape: tuple[int, int]) -> list[_Rows]:
    """Both ways to read a matrix as rows with one scale each, where there is one."""
    grid, integers = tensor.grid, tensor.integers
    matrices = [array.reshape(shape) for array in (grid.dequantize(integers), integers)]
    result = []
    for rows_first in (True, False):
        values, steps = (array if rows_first else array.T for array in matrices)
        scale = _per_row(tensor, grid.scale, shape, rows_first)
        zero = _per_row(tensor, grid.zero_point, shape, rows_first)
        if scale is not None and zero is not None:
            result.append(
                _Rows(tensor.name, values, steps, zero.astype(np.int32), scale.astype(np.float64))
            )
    return result


def _per_row(
    tensor: GivenTensor, array: Array, shape: tuple[int, int], rows_first: bool
) -> Array | None:
    """Scales or zero points of the rows; None if they change within one."""
    whole = tensor.integers.shape
    spread = np.broadcast_to(tensor.grid.spread(array, whole), whole).reshape(shape)
    matrix = spread if rows_first else spread.T
    return matrix[:, 0] if bool((matrix == matrix[:, :1]).all()) else None


# Keys on an asymmetric grid, made symmetric without changing what the model computes.
#
# Attention takes symmetric int8. A constant added to every element of every key adds, for each
# query, the same number to all of its scores, and softmax does not see that. So keys on a grid of
# 0..255 around a zero point can be counted from 128: their layer's bias takes the difference, and
# every integer of the grid is kept.

_KEYS = 1
"""Position of the keys among the operands of attention."""


def centre_keys(
    module: tvm.IRModule, parameters: Weights, readers: Mapping[str, tuple[GivenReader, ...]]
) -> tuple[dict[str, Array], dict[str, tuple[GivenReader, ...]], tuple[str, ...]]:
    """Shift keys so that their grid is symmetric.

    Parameters
    ----------
    module
        A canonical module.
    parameters
        Its weights.
    readers
        How values are rounded for their readers.

    Returns
    -------
    parameters
        With the biases of some key layers changed.
    readers
        With the zero points of their grids in the middle.
    names : tuple of str
        Canonical names of the keys that were shifted.
    """
    arrays, result, names = dict(parameters), dict(readers), []
    calls = list(canonical_calls(module))
    uses: dict[relax.Var, list[tuple[str, int]]] = {}
    for _, call in calls:
        for index, argument in enumerate(call.args):
            uses.setdefault(argument, []).append((str(call.op.name), index))
    returned = set(relax.analysis.free_vars(main_function(module).body.body))
    for variable, call in calls:
        name = value_name(call)
        only_key = uses.get(variable) == [("canonical.attention", _KEYS)]
        if call.op.name != "canonical.linear" or not only_key or variable in returned:
            continue
        scale = _movable(readers.get(name, ()))
        bias = call.args[2]
        if scale is None or len(uses[bias]) > 1:
            continue
        middle = (scale.low + scale.high + 1) // 2
        shift = float(scale.scale) * (int(scale.zero_point) - middle)
        arrays[bias.name] = (parameters[bias.name] + np.float64(shift)).astype(np.float32)
        moved = replace(scale, zero_point=np.asarray(middle, np.int64))
        result[name] = tuple(
            replace(reader, scale=moved if reader.scale is not None else None)
            for reader in readers[name]
        )
        names.append(name)
    return arrays, result, tuple(names)


def _movable(readers: tuple[GivenReader, ...]) -> GivenScale | None:
    """The one grid of all readers, if it is asymmetric and fits int8 around its middle."""
    scales = [reader.scale for reader in readers if reader.scale is not None]
    if not scales or not all(scale.same_as(scales[0]) for scale in scales):
        return None
    scale = scales[0]
    if not scale.per_tensor or scale.bits > 8:
        return None
    zero = int(scale.zero_point)
    fits = scale.low - zero >= -128 and scale.high - zero <= 127
    return None if fits else scale


def import_quantised_onnx_model(model: onnx.ModelProto, **options: Any) -> CanonicalModel:
    """Import a quantised ONNX model: QDQ, or static QOperator.

    Parameters
    ----------
    model
        The model, all its data in memory; not changed.
    **options
        As for `ibert_tvm.frontend.onnx.importing.import_onnx_model`. What is verified is the model
        with dequantised weights and unrounded activations.

    Returns
    -------
    CanonicalModel
        Its weights are the dequantised ones; `given` holds integers, scales and zero points.

    Raises
    ------
    UnsupportedModelError
        If a part of the model has no canonical form, it is quantised dynamically, or its scales
        cannot be told.
    ModelSourceError
        If a scale that is needed is 0, infinite or not a number.
    """
    model = without_functions(model, str(options["source"]))
    stripped = strip(to_qdq(model))
    return _with_scales(import_onnx_model(stripped.model, **options), stripped)


def _with_scales(model: CanonicalModel, stripped: StrippedModel) -> CanonicalModel:
    calls = list(canonical_calls(model.module))
    channels = {
        value_name(call): int(variable.ty.shape.values[-1])
        for variable, call in calls
        if str(variable.ty.dtype) == "float32"
    }
    placement = Placer(stripped, model.report.tensors, channels).run()
    index = MatrixIndex(stripped.constants.values())
    matrices: dict[str, GivenMatrix] = {}
    for _, call in calls:
        _, parameter = matrix_of(call)
        if not parameter:
            continue
        hint = model.report.weights.get(parameter, parameter)
        found = index.find(model.parameters[parameter], hint)
        if found is not None:
            matrices[value_name(call)] = found
    parameters, readers, keys = centre_keys(model.module, model.parameters, placement.readers)
    given = GivenQuantization(readers, matrices, placement.tensors, placement.uses, keys)
    return replace(model, parameters=parameters, given=given)
