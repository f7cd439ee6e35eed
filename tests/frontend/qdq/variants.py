"""Ways in which ONNX Runtime quantises a model, by name: the options of `quantize_static`."""

from __future__ import annotations

from typing import Any

from onnxruntime.quantization import QuantFormat, QuantType

_LINEAR = ["MatMul", "Gemm"]
_QDQ, _QOPERATOR = QuantFormat.QDQ, QuantFormat.QOperator
_U8, _S8 = QuantType.QUInt8, QuantType.QInt8
_SYMMETRIC = {"extra_options": {"ActivationSymmetric": True}}
_ASYMMETRIC_WEIGHTS = {"extra_options": {"WeightSymmetric": False}}
# On a processor with AVX2 and no VNNI, ONNX Runtime adds two products of a uint8 and an int8 in 16
# bits, which saturate: its integer operators compute something else there. Weights of 7 bits fit.
_EXACT_EVERYWHERE = {"reduce_range": True}

VARIANTS: dict[str, dict[str, Any]] = {
    "qdq_all": {"quant_format": _QDQ, "activation_type": _U8},
    "qdq_all_per_channel": {"quant_format": _QDQ, "activation_type": _U8, "per_channel": True},
    "qdq_all_s8": {"quant_format": _QDQ, "activation_type": _S8, "per_channel": True},
    "qdq_all_symmetric": {"quant_format": _QDQ, "activation_type": _S8, **_SYMMETRIC},
    "qdq_linear": {"quant_format": _QDQ, "activation_type": _U8, "op_types_to_quantize": _LINEAR},
    "qdq_linear_symmetric": {
        "quant_format": _QDQ,
        "activation_type": _S8,
        "per_channel": True,
        "op_types_to_quantize": _LINEAR,
        **_SYMMETRIC,
    },
    "qdq_linear_u8_weights": {
        "quant_format": _QDQ,
        "activation_type": _U8,
        "weight_type": _U8,
        "op_types_to_quantize": _LINEAR,
    },
    "qdq_linear_asymmetric_weights": {
        "quant_format": _QDQ,
        "activation_type": _U8,
        "op_types_to_quantize": _LINEAR,
        **_ASYMMETRIC_WEIGHTS,
    },
    "qoperator_all": {
        "quant_format": _QOPERATOR,
        "activation_type": _U8,
        **_EXACT_EVERYWHERE,
    },
    "qoperator_linear": {
        "quant_format": _QOPERATOR,
        "activation_type": _U8,
        "op_types_to_quantize": _LINEAR,
        **_EXACT_EVERYWHERE,
    },
    "qoperator_linear_u8_weights": {
        "quant_format": _QOPERATOR,
        "activation_type": _U8,
        "weight_type": _U8,
        "op_types_to_quantize": _LINEAR,
    },
}
