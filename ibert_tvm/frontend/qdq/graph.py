"""Small helpers on ONNX graphs: constants, attributes, operator names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from ...common.types import Array
from ..onnx.reading import type_name

MICROSOFT = "com.microsoft"
QUANTIZE = "QuantizeLinear"
DEQUANTIZE = "DequantizeLinear"

MOVES = frozenset(
    {
        "Expand",
        "Flatten",
        "Gather",
        "GatherElements",
        "Identity",
        "Reshape",
        "Slice",
        "Split",
        "Squeeze",
        "Tile",
        "Transpose",
        "Unsqueeze",
    }
)
"""Operators that move the elements of their first operand and compute nothing."""


def kind(node: onnx.NodeProto) -> str:
    """Return the operator's name; one of ONNX Runtime's carries its domain."""
    standard = node.domain in ("", "ai.onnx")
    if standard or node.op_type in (QUANTIZE, DEQUANTIZE):
        return str(node.op_type)
    return f"{node.domain}.{node.op_type}"


def label(node: onnx.NodeProto) -> str:
    """Return the node's name, or what it computes where it has none."""
    return str(node.name or f"the {node.op_type} that computes {node.output[0]}")


def attribute(node: onnx.NodeProto, name: str, default: Any) -> Any:
    """Return an attribute's value, or `default` where the node does not have it."""
    for item in node.attribute:
        if item.name == name:
            return onnx.helper.get_attribute_value(item)
    return default


def unused_name(name: str, taken: set[str]) -> str:
    """Return `name`, with something appended if it is taken, and take it."""
    candidate, count = name, 1
    while candidate in taken:
        count += 1
        candidate = f"{name}.{count}"
    taken.add(candidate)
    return candidate


class Constants:
    """Constant tensors of a graph: initialisers and Constant nodes, by name.

    Parameters
    ----------
    graph
        The graph.
    """

    def __init__(self, graph: onnx.GraphProto) -> None:
        self._tensors = {tensor.name: tensor for tensor in graph.initializer}
        self._nodes = {node.output[0]: node for node in graph.node if node.op_type == "Constant"}
        self._arrays: dict[str, Array] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._tensors or name in self._nodes or name in self._arrays

    def __getitem__(self, name: str) -> Array:
        """Return the elements of the constant `name`."""
        if name not in self._arrays:
            if name in self._tensors:
                self._arrays[name] = numpy_helper.to_array(self._tensors[name])
            else:
                self._arrays[name] = _constant(self._nodes[name])
        return self._arrays[name]

    def dtype(self, name: str) -> str:
        """Return the ONNX name of the type of the constant `name`, ``int8`` for example."""
        if name in self._tensors:
            return type_name(self._tensors[name].data_type)
        value = attribute(self._nodes[name], "value", None) if name in self._nodes else None
        return type_name(value.data_type) if value is not None else str(self[name].dtype)

    def set(self, name: str, array: Array) -> None:
        """Add or replace a constant."""
        self._arrays[name] = array

    def names(self) -> Iterator[str]:
        """All names."""
        yield from {**self._tensors, **self._nodes, **self._arrays}


def _constant(node: onnx.NodeProto) -> Array:
    item = node.attribute[0]
    value = onnx.helper.get_attribute_value(item)
    if item.name == "value":
        return numpy_helper.to_array(value)
    if item.name in ("value_float", "value_floats"):
        return np.asarray(value, np.float32)
    if item.name in ("value_int", "value_ints"):
        return np.asarray(value, np.int64)
    return np.asarray(value)
