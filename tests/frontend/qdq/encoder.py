"""A small BERT as an ONNX graph written by hand, and ONNX Runtime's quantisation of it."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

VOCABULARY, POSITIONS = 40, 24
HIDDEN, HEADS, INNER, LAYERS = 16, 2, 32, 2
EPSILON = 1e-12

Arrays = dict[str, NDArray[np.float32]]


def weights(seed: int = 0, layers: int = LAYERS) -> Arrays:
    """Random weights by Hugging Face's names."""
    random = np.random.default_rng(seed)

    def normal(*shape: int, scale: float = 0.25) -> NDArray[np.float32]:
        return random.normal(0, scale, shape).astype(np.float32)

    def norm(name: str) -> Arrays:
        return {
            f"{name}.weight": (1 + normal(HIDDEN, scale=0.1)).astype(np.float32),
            f"{name}.bias": normal(HIDDEN, scale=0.1),
        }

    result = {
        "embeddings.word_embeddings.weight": normal(VOCABULARY, HIDDEN),
        "embeddings.position_embeddings.weight": normal(POSITIONS, HIDDEN),
        "embeddings.token_type_embeddings.weight": normal(2, HIDDEN),
        **norm("embeddings.LayerNorm"),
    }
    shapes = {
        "attention.self.query": (HIDDEN, HIDDEN),
        "attention.self.key": (HIDDEN, HIDDEN),
        "attention.self.value": (HIDDEN, HIDDEN),
        "attention.output.dense": (HIDDEN, HIDDEN),
        "intermediate.dense": (INNER, HIDDEN),
        "output.dense": (HIDDEN, INNER),
    }
    for layer in range(layers):
        prefix = f"encoder.layer.{layer}"
        for name, shape in shapes.items():
            result[f"{prefix}.{name}.weight"] = normal(*shape)
            result[f"{prefix}.{name}.bias"] = normal(shape[0], scale=0.1)
        result |= norm(f"{prefix}.attention.output.LayerNorm")
        result |= norm(f"{prefix}.output.LayerNorm")
    return result


class GraphBuilder:
    """Appends nodes to a graph; a node's name is its output's without the suffix."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self._known: set[str] = set()

    def constant(self, name: str, array: Any) -> str:
        if name not in self._known:
            self._known.add(name)
            self.initializers.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def node(self, op: str, inputs: Sequence[str], name: str, **attributes: Any) -> str:
        output = f"{name}_output_0"
        self.nodes.append(helper.make_node(op, list(inputs), [output], name, **attributes))
        return output

    def ints(self, *values: int) -> str:
        return self.constant("ints_" + "_".join(map(str, values)), np.array(values, np.int64))

    def number(self, value: float) -> str:
        return self.constant(f"number_{value:g}", np.float32(value))


def encoder(
    arrays: Mapping[str, NDArray[np.float32]] | None = None,
    layers: int = LAYERS,
    *,
    gemm: bool = False,
    opset: int = 17,
    lowest: float = float(np.finfo(np.float32).min),
    token_types: bool = False,
) -> onnx.ModelProto:
    """The encoder; output ``last_hidden_state`` [batch, seq_len, HIDDEN].

    Parameters
    ----------
    arrays : mapping, optional
        Weights as `weights` makes them.
    layers : int
        Number of layers.
    gemm : bool
        Write the layers of the feed-forward part as Gemm on a matrix of all tokens.
    opset : int
        Operator set.
    lowest : float
        Added to the scores of padding.
    token_types : bool
        Take ``token_type_ids`` as an input; otherwise all are 0.
    """
    w = dict(arrays if arrays is not None else weights(layers=layers))
    g = GraphBuilder()

    def linear(x: str, layer: str) -> str:
        path = "/" + layer.replace(".", "/")
        matrix = g.constant(f"{layer}.weight", np.ascontiguousarray(w[f"{layer}.weight"].T))
        bias = g.constant(f"{layer}.bias", w[f"{layer}.bias"])
        if gemm and ("intermediate" in layer or layer.endswith("output.dense")):
            outputs = len(w[f"{layer}.bias"])
            inputs = len(w[f"{layer}.weight"][0])
            flat = g.node("Reshape", [x, g.ints(-1, inputs)], f"{path}/Flat")
            y = g.node("Gemm", [flat, matrix, bias], f"{path}/Gemm")
            shape = g.node("Concat", [tokens, g.ints(outputs)], f"{path}/Shape", axis=0)
            return g.node("Reshape", [y, shape], f"{path}/Unflat")
        product = g.node("MatMul", [x, matrix], f"{path}/MatMul")
        return g.node("Add", [product, bias], f"{path}/Add")

    def norm(x: str, layer: str) -> str:
        gamma, beta = (g.constant(f"{layer}.{p}", w[f"{layer}.{p}"]) for p in ("weight", "bias"))
        path = "/" + layer.replace(".", "/")
        return g.node("LayerNormalization", [x, gamma, beta], path, axis=-1, epsilon=EPSILON)

    tokens = g.node("Shape", ["input_ids"], "/Shape")
    length = g.node("Gather", [tokens, g.constant("one", np.int64(1))], "/Length")
    places = g.node(
        "Range",
        [g.constant("zero", np.int64(0)), length, g.constant("one", np.int64(1))],
        "/embeddings/Range",
    )
    words, positions, types = (
        g.constant(
            f"embeddings.{name}_embeddings.weight", w[f"embeddings.{name}_embeddings.weight"]
        )
        for name in ("word", "position", "token_type")
    )
    zeros = "token_type_ids"
    if not token_types:
        zeros = g.node("ConstantOfShape", [tokens], "/embeddings/Types", value=_zero())
    x = g.node("Gather", [words, "input_ids"], "/embeddings/word_embeddings/Gather")
    kinds = g.node("Gather", [types, zeros], "/embeddings/token_type_embeddings/Gather")
    where = g.node("Gather", [positions, places], "/embeddings/position_embeddings/Gather")
    x = g.node("Add", [x, kinds], "/embeddings/Add")
    x = g.node("Add", [x, where], "/embeddings/Add_1")
    x = norm(x, "embeddings.LayerNorm")
    mask = g.node("Unsqueeze", ["attention_mask", g.ints(1, 2)], "/mask/Unsqueeze")
    mask = g.node("Cast", [mask], "/mask/Cast", to=TensorProto.FLOAT)
    mask = g.node("Sub", [g.number(1.0), mask], "/mask/Sub")
    mask = g.node("Mul", [mask, g.constant("lowest", np.float32(lowest))], "/mask/Mul")
    width = HIDDEN // HEADS
    for index in range(layers):
        layer = f"encoder.layer.{index}"
        path = "/" + layer.replace(".", "/") + "/attention/self"
        heads = g.node("Concat", [tokens, g.ints(HEADS, width)], f"{path}/Heads", axis=0)

        def split(
            name: str, axes: list[int], x: str = x, layer: str = layer, heads: str = heads
        ) -> str:
            y = linear(x, f"{layer}.attention.self.{name}")
            at = f"/{layer.replace('.', '/')}/attention/self/{name}"
            y = g.node("Reshape", [y, heads], f"{at}/Reshape")
            return g.node("Transpose", [y], f"{at}/Transpose", perm=axes)

        q = split("query", [0, 2, 1, 3])
        k = split("key", [0, 2, 3, 1])
        v = split("value", [0, 2, 1, 3])
        scores = g.node("MatMul", [q, k], f"{path}/MatMul")
        scores = g.node("Mul", [scores, g.number(width**-0.5)], f"{path}/Mul")
        scores = g.node("Add", [scores, mask], f"{path}/Add")
        weight = g.node("Softmax", [scores], f"{path}/Softmax", axis=-1)
        y = g.node("MatMul", [weight, v], f"{path}/MatMul_1")
        y = g.node("Transpose", [y], f"{path}/Transpose_3", perm=[0, 2, 1, 3])
        whole = g.node("Concat", [tokens, g.ints(HIDDEN)], f"{path}/Whole", axis=0)
        y = g.node("Reshape", [y, whole], f"{path}/Reshape_3")
        y = linear(y, f"{layer}.attention.output.dense")
        x = g.node("Add", [y, x], f"/{layer.replace('.', '/')}/attention/output/Add")
        x = norm(x, f"{layer}.attention.output.LayerNorm")
        y = linear(x, f"{layer}.intermediate.dense")
        path = "/" + layer.replace(".", "/") + "/intermediate/act"
        e = g.node("Div", [y, g.number(2.0**0.5)], f"{path}/Div")
        e = g.node("Erf", [e], f"{path}/Erf")
        e = g.node("Add", [e, g.number(1.0)], f"{path}/Add")
        e = g.node("Mul", [y, e], f"{path}/Mul")
        y = g.node("Mul", [e, g.number(0.5)], f"{path}/Mul_1")
        y = linear(y, f"{layer}.output.dense")
        x = g.node("Add", [y, x], f"/{layer.replace('.', '/')}/output/Add")
        x = norm(x, f"{layer}.output.LayerNorm")
    g.nodes.append(helper.make_node("Identity", [x], ["last_hidden_state"], "/output"))
    axes = ["batch", "sequence"]
    graph = helper.make_graph(
        g.nodes,
        "encoder",
        [
            helper.make_tensor_value_info(name, TensorProto.INT64, axes)
            for name in ("input_ids", "attention_mask", *(["token_type_ids"] * token_types))
        ],
        [helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, [*axes, HIDDEN])],
        g.initializers,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    model.ir_version = 10
    onnx.checker.check_model(model)
    return model


def _zero() -> onnx.TensorProto:
    return helper.make_tensor("value", TensorProto.INT64, [1], [0])


def batches(count: int = 8, length: int = 12) -> list[dict[str, NDArray[np.int64]]]:
    """Random token batches [2, length]; the second row is padded."""
    random = np.random.default_rng(1)
    result = []
    for _ in range(count):
        mask = np.ones((2, length), np.int64)
        mask[1, 2 * length // 3 :] = 0
        ids = random.integers(1, VOCABULARY, (2, length)) * mask
        result.append({"input_ids": ids, "attention_mask": mask})
    return result


def quantize(folder: Path, model: onnx.ModelProto, **options: Any) -> onnx.ModelProto:
    """Quantise with `onnxruntime.quantization.quantize_static`; `options` are its own."""
    from onnxruntime.quantization import CalibrationDataReader, quantize_static

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.items: Iterator[dict[str, NDArray[np.int64]]] = iter(batches())

        def get_next(self) -> dict[str, NDArray[np.int64]] | None:
            return next(self.items, None)

    source, target = folder / "float.onnx", folder / "quantised.onnx"
    onnx.save(model, source)
    level = logging.getLogger().level
    logging.getLogger().setLevel(logging.ERROR)
    try:
        quantize_static(source, target, Reader(), **options)
    finally:
        logging.getLogger().setLevel(level)
    return onnx.load(target)


def run(model: onnx.ModelProto, inputs: Mapping[str, Any]) -> NDArray[np.float32]:
    """Run a model with ONNX Runtime, without any of its optimisations."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    output: NDArray[np.float32] = session.run(None, dict(inputs))[0]
    return output
