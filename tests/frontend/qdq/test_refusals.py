"""What cannot be read from a quantised ONNX file, and what is said about it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ibert_tvm.frontend.errors import ModelSourceError, UnsupportedModelError
from ibert_tvm.frontend.qdq.importing import import_quantised_onnx_model
from ibert_tvm.frontend.qdq.qoperator import to_qdq
from ibert_tvm.frontend.qdq.strip import strip
from tests.frontend.qdq.encoder import encoder
from tests.frontend.qdq.writer import QdqWriter

MICROSOFT = "com.microsoft"


def graph(nodes: Sequence[onnx.NodeProto], **constants: Any) -> onnx.ModelProto:
    """A model from x [2, 4] float to y."""
    made = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [
            array if isinstance(array, onnx.TensorProto) else numpy_helper.from_array(array, name)
            for name, array in constants.items()
        ],
    )
    return helper.make_model(
        made, opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)]
    )


def node(op: str, inputs: Sequence[str], outputs: Sequence[str], domain: str = "", **kw: Any):
    return helper.make_node(op, list(inputs), list(outputs), f"/{op}", domain=domain, **kw)


SCALE = {"s": np.array(0.5, np.float32), "z": np.array(0, np.int8)}
WEIGHT = {"w": np.ones((4, 4), np.int8), "ws": np.array(0.25, np.float32)}


def quantized(*nodes: onnx.NodeProto, **constants: Any) -> onnx.ModelProto:
    """A graph that starts with the integers q of x."""
    first = node("QuantizeLinear", ["x", "s", "z"], ["q"])
    return graph([first, *nodes], **{**SCALE, **constants})


def dynamic() -> None:
    to_qdq(
        graph(
            [
                node("DynamicQuantizeLinear", ["x"], ["q", "qs", "qz"]),
                node("MatMulInteger", ["q", "w", "qz"], ["i"]),
            ],
            **WEIGHT,
        )
    )


def unknown_operator() -> None:
    to_qdq(quantized(node("QLinearConv", ["q", "s", "z", "w", "ws", "z", "s", "z"], ["y"])))


def attention_with_a_computed_scale() -> None:
    inputs = ["q", "w", "b", "qs", "ws", "", "z"]
    to_qdq(quantized(node("QAttention", inputs, ["y"], MICROSOFT, num_heads=2), **WEIGHT))


def integers_that_are_not_scaled() -> None:
    to_qdq(
        quantized(
            node("MatMulInteger", ["q", "w"], ["i"]), node("Cast", ["i"], ["y"], to=1), **WEIGHT
        )
    )


def computed_scale() -> None:
    strip(
        graph(
            [
                node("ReduceMax", ["x"], ["s"], keepdims=0),
                node("QuantizeLinear", ["x", "s"], ["q"]),
                node("DequantizeLinear", ["q", "s"], ["y"]),
            ]
        )
    )


def no_scale() -> None:
    """Found by fuzzing: an optional operand may have no name, and this one is not optional."""
    strip(graph([node("QuantizeLinear", ["x", ""], ["q"])]))


def float_type() -> None:
    eight = helper.make_tensor("z", TensorProto.FLOAT8E4M3FN, [], [0.0])
    strip(quantized(node("DequantizeLinear", ["q", "s", "z"], ["y"]), z=eight))


def two_scales() -> None:
    strip(quantized(node("DequantizeLinear", ["q", "s2", "z"], ["y"]), s2=np.float32(0.25)))


def arithmetic_on_integers() -> None:
    strip(
        quantized(node("Add", ["q", "q"], ["r"]), node("DequantizeLinear", ["r", "s", "z"], ["y"]))
    )


def scales_that_do_not_fit() -> None:
    scales = {"ws": np.ones(3, np.float32), "w": np.ones((4, 4), np.int8)}
    strip(graph([node("DequantizeLinear", ["w", "ws"], ["y"], axis=0)], **scales))


def zero_points_that_do_not_fit() -> None:
    zeros = {"s": np.ones(4, np.float32), "z": np.zeros(3, np.int8)}
    strip(quantized(node("DequantizeLinear", ["q", "s", "z"], ["y"]), **zeros))


def zero_points_of_one_scale() -> None:
    zeros = {"s": np.ones(1, np.float32), "z": np.zeros(3, np.int8)}
    strip(quantized(node("DequantizeLinear", ["q", "s", "z"], ["y"]), **zeros))


def moved_slices() -> None:
    constants = {
        "s": np.ones(4, np.float32),
        "z": np.zeros(4, np.int8),
        "shape": np.array([4, 2], np.int64),
    }
    strip(
        quantized(
            node("Reshape", ["q", "shape"], ["r"]),
            node("DequantizeLinear", ["r", "s", "z"], ["y"], axis=0),
            **constants,
        )
    )


def scale_of_zero() -> None:
    writer = QdqWriter(encoder(layers=1))
    writer.activation("/embeddings/LayerNorm_output_0", 0.0)
    import_quantised_onnx_model(writer.finish(), source="m.onnx", verify=False)


def scales_along_the_sequence() -> None:
    writer = QdqWriter(encoder(layers=1))
    writer.activation("/embeddings/LayerNorm_output_0", np.ones(16), axis=1)
    import_quantised_onnx_model(writer.finish(), source="m.onnx", verify=False)


@pytest.mark.parametrize(
    "case",
    [
        dynamic,
        unknown_operator,
        attention_with_a_computed_scale,
        integers_that_are_not_scaled,
        computed_scale,
        no_scale,
        float_type,
        two_scales,
        arithmetic_on_integers,
        scales_that_do_not_fit,
        zero_points_that_do_not_fit,
        zero_points_of_one_scale,
        moved_slices,
        scale_of_zero,
        scales_along_the_sequence,
    ],
)
def test_what_cannot_be_read_is_refused_with_the_reason(case, messages):
    with messages.raises((ModelSourceError, UnsupportedModelError)):
        case()
