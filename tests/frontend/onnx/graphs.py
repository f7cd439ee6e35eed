"""Small ONNX graphs written by hand, and ONNX Runtime's word on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

VOCABULARY, POSITIONS, CHANNELS, HEADS = 31, 40, 24, 3
WIDTH = CHANNELS // HEADS


class Graph:
    """An ONNX graph under construction; tensors are their names."""

    def __init__(
        self,
        opset: int = 17,
        inputs: tuple[str, ...] = ("input_ids", "attention_mask"),
        shape: tuple[int | str, int | str] = ("batch", "sequence"),
        dtype: int = TensorProto.INT64,
    ) -> None:
        self.opset = opset
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.inputs = [helper.make_tensor_value_info(name, dtype, list(shape)) for name in inputs]
        self._random = np.random.default_rng(0)
        self._count = 0

    def op(self, kind: str, *operands: str, name: str = "", **attributes: Any) -> str:
        return self.ops(kind, *operands, name=name, **attributes)[0]

    def ops(
        self, kind: str, *operands: str, outputs: int = 1, name: str = "", **attributes: Any
    ) -> list[str]:
        self._count += 1
        label = name or f"n{self._count}"
        results = [f"{label}_{i}" if i else f"{label}.out" for i in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(operands), results, name=label, **attributes))
        return results

    def array(self, value: Any, dtype: str = "float32", name: str = "") -> str:
        self._count += 1
        name = name or f"val_{self._count}"
        self.weights.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def ints(self, *values: int) -> str:
        return self.array(values, "int64")

    def weight(self, name: str, *shape: int, scale: float = 0.3) -> str:
        return self.array(self._random.normal(0, scale, shape), name=name)

    def axes(self, kind: str, x: str, *axes: int, **more: Any) -> str:
        """An operator whose axes were an attribute before they became an operand."""
        since = {"Squeeze": 13, "Unsqueeze": 13, "ReduceSum": 13}.get(kind, 18)
        if self.opset >= since:
            return self.op(kind, x, self.ints(*axes), **more)
        return self.op(kind, x, axes=list(axes), **more)

    # -- parts of an encoder --------------------------------------------------------------------

    def words(self) -> str:
        table = self.weight("words.weight", VOCABULARY, CHANNELS)
        return self.op("Gather", table, "input_ids")

    def affine(self, name: str, *shape: int) -> tuple[str, str]:
        """A weight of this shape, by default of one number a channel, and its bias."""
        shape = shape or (CHANNELS,)
        return self.weight(f"{name}.weight", *shape), self.weight(f"{name}.bias", shape[-1])

    def linear(self, x: str, name: str, outputs: int = CHANNELS, inputs: int = CHANNELS) -> str:
        product = self.op("MatMul", x, self.weight(f"{name}.weight", inputs, outputs))
        return self.op("Add", product, self.weight(f"{name}.bias", outputs))

    def heads(self, x: str) -> str:
        split = self.op("Reshape", x, self.ints(0, 0, HEADS, WIDTH))
        return self.op("Transpose", split, perm=[0, 2, 1, 3])

    def joined(self, x: str) -> str:
        moved = self.op("Transpose", x, perm=[0, 2, 1, 3])
        return self.op("Reshape", moved, self.ints(0, 0, CHANNELS))

    def attention(self, x: str, mask: Callable[[str], str] | None, name: str = "self") -> str:
        """Attention whose scores go through `mask` before the softmax."""
        q, k, v = (self.heads(self.linear(x, f"{name}.{part}")) for part in ("q", "k", "v"))
        scores = self.op("MatMul", q, self.op("Transpose", k, perm=[0, 1, 3, 2]))
        scores = self.op("Mul", scores, self.array(WIDTH**-0.5))
        if mask is not None:
            scores = mask(scores)
        return self.joined(self.op("MatMul", self.op("Softmax", scores, axis=-1), v))

    def additive_mask(self, scores: str, low: float = -10000.0) -> str:
        """BERT's own: (1 - mask) * low, added."""
        wide = self.axes("Unsqueeze", "attention_mask", 1, 2)
        real = self.op("Cast", wide, to=TensorProto.FLOAT)
        term = self.op("Mul", self.op("Sub", self.array(1.0), real), self.array(low))
        return self.op("Add", scores, term)

    def over_queries(self, mask: str) -> str:
        """Expand a mask [batch, 1, 1, tokens] to [batch, 1, tokens, tokens]."""
        shape = self.op("Shape", "input_ids")
        batch = self.op("Slice", shape, self.ints(0), self.ints(1))
        length = self.op("Slice", shape, self.ints(1), self.ints(2))
        full = self.op("Concat", batch, self.ints(1), length, length, axis=0)
        return self.op("Expand", mask, full)

    def layer_norm(self, x: str, name: str) -> str:
        return self.op("LayerNormalization", x, *self.affine(name), epsilon=1e-5)

    def model(self, *outputs: str, names: tuple[str, ...] = (), rank: int = 3) -> onnx.ModelProto:
        """The graph as a model with these tensors as outputs, under other names where given."""
        for tensor, name in zip(outputs, names, strict=False):
            self.nodes.append(helper.make_node("Identity", [tensor], [name], name=f"to_{name}"))
        dims = ["batch", *["sequence"] * (rank - 2), "width"]
        infos = [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)
            for name in (names or outputs)
        ]
        graph = helper.make_graph(self.nodes, "graph", self.inputs, infos, self.weights)
        domains = {node.domain for node in self.nodes} - {""}
        opsets = [helper.make_opsetid("", self.opset)]
        opsets += [helper.make_opsetid(domain, 1) for domain in sorted(domains)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10, producer_name="hand")


def layer_norm_written_out(
    g: Graph, x: str, name: str, squares: str = "pow", ends: str = "div"
) -> str:
    """LayerNorm in small operators.

    squares: pow, mul, twice (x - mean computed again) or moments (E[x²] - E[x]²);
    ends: div, reciprocal, or scale (x s + (beta - mean s) with s = gamma / sqrt).
    """
    gamma, beta = g.affine(name)
    mean = g.axes("ReduceMean", x, -1)
    centred = g.op("Sub", x, mean)
    if squares == "moments":
        second = g.axes("ReduceMean", g.op("Mul", x, x), -1)
        variance = g.op("Sub", second, g.op("Mul", mean, mean))
    else:
        again = g.op("Sub", x, mean) if squares == "twice" else centred
        square = g.op("Mul", again, again) if squares == "mul" else g.op("Pow", again, g.array(2.0))
        variance = g.axes("ReduceMean", square, -1)
    deviation = g.op("Sqrt", g.op("Add", variance, g.array(1e-5)))
    if ends == "scale":
        scale = g.op("Mul", g.op("Reciprocal", deviation), gamma)
        shift = g.op("Sub", beta, g.op("Mul", mean, scale))
        return g.op("Add", g.op("Mul", x, scale), shift)
    if ends == "reciprocal":
        normal = g.op("Mul", centred, g.op("Reciprocal", deviation))
    else:
        normal = g.op("Div", centred, deviation)
    return g.op("Add", g.op("Mul", normal, gamma), beta)


def batch_of(rows: int, length: int, seed: int = 0) -> dict[str, NDArray[np.int64]]:
    """Random tokens, the last rows padded."""
    random = np.random.default_rng(seed)
    mask = np.ones((rows, length), np.int64)
    mask[-1, length // 2 :] = 0
    return {"input_ids": random.integers(2, VOCABULARY, mask.shape), "attention_mask": mask}
