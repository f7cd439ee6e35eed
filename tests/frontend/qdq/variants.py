"""Ways in which ONNX Runtime quantises a model, by name: the options of `quantize_static`."""

from __future__ import annotations

from typing import Any

from onnxruntime.quantization import QuantFormat, QuantType

_QDQ, _QOPERATOR = QuantFormat.QDQ, QuantFormat.QOperator
_U8, _S8 = QuantType.QUInt8, QuantType.QInt8
_LINEAR = {"op_types_to_quantize": ["MatMul", "Gemm"]}
_SYMMETRIC = {"extra_options": {"ActivationSymmetric": True}}
_ASYMMETRIC_WEIGHTS = {"extra_options": {"WeightSymmetric": False}}
# On a processor with AVX2 and no VNNI, ONNX Runtime adds two products of a uint8 and an int8 in 16
# bits, which saturate: its integer operators compute something else there. Weights of 7 bits fit.
_EXACT_EVERYWHERE = {"reduce_range": True}


def _variant(
    form: QuantFormat, activation: QuantType = _U8, *parts: dict[str, Any], **more: Any
) -> dict[str, Any]:
    options = {"quant_format": form, "activation_type": activation, **more}
    for part in parts:
        options |= part
    return options


VARIANTS: dict[str, dict[str, Any]] = {
    "qdq_all": _variant(_QDQ),
    "qdq_all_per_channel": _variant(_QDQ, per_channel=True),
    "qdq_all_s8": _variant(_QDQ, _S8, per_channel=True),
    "qdq_all_symmetric": _variant(_QDQ, _S8, _SYMMETRIC),
    "qdq_linear": _variant(_QDQ, _U8, _LINEAR),
    "qdq_linear_symmetric": _variant(_QDQ, _S8, _LINEAR, _SYMMETRIC, per_channel=True),
    "qdq_linear_u8_weights": _variant(_QDQ, _U8, _LINEAR, weight_type=_U8),
    "qdq_linear_asymmetric_weights": _variant(_QDQ, _U8, _LINEAR, _ASYMMETRIC_WEIGHTS),
    "qoperator_all": _variant(_QOPERATOR, _U8, _EXACT_EVERYWHERE),
    "qoperator_linear": _variant(_QOPERATOR, _U8, _LINEAR, _EXACT_EVERYWHERE),
    "qoperator_linear_u8_weights": _variant(_QOPERATOR, _U8, _LINEAR, weight_type=_U8),
}
