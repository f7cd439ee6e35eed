"""ONNX models in 16-bit floats: the same model in float32, with exactly the same weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx


def in_float32(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model that computes in float32 what `model` computes in float16 or bfloat16.

    Weights keep their values, which float32 holds exactly; sums are no longer rounded to 16 bits.
    Casts to such a type become casts to float32.

    Parameters
    ----------
    model
        All its data in memory; left as it is.

    Returns
    -------
    onnx.ModelProto
        A copy, or the model itself where it has no such type.
    """
    if not any(_is_short(kind) for kind in _types(model.graph)):
        return model
    changed = type(model)()
    changed.CopyFrom(model)
    for graph in _graphs(changed.graph):
        _convert(graph)
    return changed


def _is_short(data_type: int) -> bool:
    from onnx import TensorProto

    return data_type in (TensorProto.FLOAT16, TensorProto.BFLOAT16)


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """A graph and those inside of its nodes."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
                yield from _graphs(inner)


def _types(whole: onnx.GraphProto) -> Iterator[int]:
    """Types of a graph's tensors and casts."""
    for graph in _graphs(whole):
        yield from (item.data_type for item in graph.initializer)
        yield from (
            item.type.tensor_type.elem_type
            for item in (*graph.input, *graph.output, *graph.value_info)
        )
        for node in graph.node:
            for attribute in node.attribute:
                yield attribute.t.data_type
                if attribute.name in _NAMED_TYPES:
                    yield attribute.i


_NAMED_TYPES = ("to", "dtype", "stash_type", "softmax_precision")
"""Attributes of ONNX operators that name a type."""


def _convert(graph: onnx.GraphProto) -> None:
    from onnx import TensorProto

    for item in graph.initializer:
        _convert_tensor(item)
    for item in (*graph.input, *graph.output, *graph.value_info):
        kind = item.type.tensor_type
        if _is_short(kind.elem_type):
            kind.elem_type = TensorProto.FLOAT
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                _convert_tensor(attribute.t)
            for item in attribute.tensors:
                _convert_tensor(item)
            if attribute.name in _NAMED_TYPES and _is_short(attribute.i):
                attribute.i = TensorProto.FLOAT


def _convert_tensor(tensor: onnx.TensorProto) -> None:
    from onnx import numpy_helper

    if _is_short(tensor.data_type):
        array = numpy_helper.to_array(tensor).astype("float32")
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
