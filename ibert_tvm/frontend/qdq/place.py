"""Which canonical value every rounding of the source belongs to.

The importer says of every source tensor which canonical value it shows, if any. A rounding counts
for a reader of the value when it lies on the way from the value's first tensor to that reader, past
reshapes, transposes and slices. Everything else lies inside an operator that the integer program
computes in one piece (a matrix product before its bias, the steps of GELU, attention scores), or
depends on the inputs only: a mask, whose scale is often beyond use (padding makes it 1e36).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

import numpy as np
import onnx

from ..given import EdgeUse, GivenReader, GivenScale
from ..report import ShownTensor
from . import refusals
from .graph import MOVES, label
from .strip import Edge, StrippedModel

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
