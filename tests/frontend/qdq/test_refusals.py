"""What cannot be read from a quantised ONNX file, and what is said about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ibert_tvm.common.errors import IbertError
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


FITTING = (
    "  what to do: quantise activations per tensor or along their last axis, weights per tensor or "
    "per output channel"
)

CASES: dict[Callable[[], None], tuple[type[IbertError], str]] = {
    dynamic: (
        UnsupportedModelError,
        "the model is quantised dynamically (DynamicQuantizeLinear)\n"
        "  where: node /DynamicQuantizeLinear\n"
        "  why: the scales of its activations are floats computed while it runs; an integer-only "
        "program has its scales fixed\n"
        "  what to do: quantise it statically (onnxruntime.quantization.quantize_static), or give "
        "the float model and --calibration",
    ),
    unknown_operator: (
        UnsupportedModelError,
        "the quantised operator QLinearConv is not known\n"
        "  where: node /QLinearConv\n"
        "  why: its float meaning is known for: MatMulInteger, MatMulIntegerToFloat, QAttention, "
        "QGemm, QLinearAdd, QLinearConcat, QLinearMatMul, QLinearMul, QLinearSigmoid, "
        "QLinearSoftmax, QLinearWhere\n"
        "  what to do: export with QuantFormat.QDQ, or leave this operator out of quantisation",
    ),
    attention_with_a_computed_scale: (
        UnsupportedModelError,
        "the model is quantised dynamically (QAttention)\n"
        "  where: node /QAttention\n"
        "  why: the scales of its activations are floats computed while it runs; an integer-only "
        "program has its scales fixed\n"
        "  what to do: quantise it statically (onnxruntime.quantization.quantize_static), or give "
        "the float model and --calibration",
    ),
    integers_that_are_not_scaled: (
        UnsupportedModelError,
        "MatMulInteger is not part of a static quantisation\n"
        "  where: node /MatMulInteger\n"
        "  why: its result is not multiplied by a constant scale after the cast\n"
        "  what to do: use QLinearMatMul or QDQ, or QuantizeLinear with a constant scale before "
        "it, and Cast and Mul by a constant after it",
    ),
    computed_scale: (
        UnsupportedModelError,
        "the scale s is not a constant\n"
        "  where: node /QuantizeLinear (QuantizeLinear)\n"
        "  why: an integer-only program has its scales fixed\n"
        "  what to do: store scales and zero points as initialisers",
    ),
    no_scale: (
        UnsupportedModelError,
        "the scale without a name is not a constant\n"
        "  where: node /QuantizeLinear (QuantizeLinear)\n"
        "  why: an integer-only program has its scales fixed\n"
        "  what to do: store scales and zero points as initialisers",
    ),
    float_type: (
        UnsupportedModelError,
        "a tensor is quantised to float8e4m3fn\n"
        "  where: node /QuantizeLinear\n"
        "  why: quantised types are int2, int4, int8, int16 and their unsigned forms; int32 for "
        "biases\n"
        "  what to do: quantise to 8 bits",
    ),
    two_scales: (
        UnsupportedModelError,
        "the integers of q are read with two scales\n"
        "  where: node /DequantizeLinear\n"
        "  why: one is int8, scale 0.5, zero point 0; the other is int8, scale 0.25, zero point 0\n"
        "  what to do: dequantise with the scale and zero point of the quantisation",
    ),
    arithmetic_on_integers: (
        UnsupportedModelError,
        "Add computes on the integers of q\n"
        "  where: node /Add\n"
        "  why: integers leave a quantised tensor through DequantizeLinear or a QLinear operator\n"
        "  what to do: dequantise before this operator",
    ),
    scales_that_do_not_fit: (
        UnsupportedModelError,
        "the scales do not fit the tensor\n"
        "  where: constant w\n"
        "  why: 3 scales for 4 slices along axis 0\n" + FITTING,
    ),
    zero_points_that_do_not_fit: (
        UnsupportedModelError,
        "the scales do not fit the tensor\n"
        "  where: node /QuantizeLinear\n"
        "  why: 4 scales and 3 zero points\n" + FITTING,
    ),
    zero_points_of_one_scale: (
        UnsupportedModelError,
        "the scales do not fit the tensor\n"
        "  where: node /QuantizeLinear\n"
        "  why: 1 scales and 3 zero points\n" + FITTING,
    ),
    moved_slices: (
        UnsupportedModelError,
        "the scales do not fit the tensor\n"
        "  where: node /Reshape\n"
        "  why: Reshape moves integers with one scale per slice\n" + FITTING,
    ),
    scale_of_zero: (
        ModelSourceError,
        "the scale of /embeddings/LayerNorm_output_0 is 0\n"
        "  where: node /embeddings/LayerNorm_output_0.int8.rounded/Q\n"
        "  why: a scale is a finite positive number\n"
        "  what to do: quantise the model again with calibration data that reaches this tensor",
    ),
    scales_along_the_sequence: (
        UnsupportedModelError,
        "the scales do not fit the tensor\n"
        "  where: node /embeddings/LayerNorm_output_0.int8.rounded/Q\n"
        "  why: /embeddings/LayerNorm_output_0 has 16 scales along axis 1, and the value "
        "embeddings.LayerNorm has 16 channels along its last axis\n" + FITTING,
    ),
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_what_cannot_be_read_is_refused_with_the_reason(case):
    kind, text = CASES[case]
    with pytest.raises(kind) as caught:
        case()
    assert str(caught.value) == text
    assert type(caught.value) is kind
