"""Quantised operators as what they mean: dequantise, the float operator, quantise.

ONNX Runtime writes two formats. In QDQ every operator is a float one between DequantizeLinear and
QuantizeLinear; in QOperator these are fused into operators on integers. Rewriting the second to the
first leaves one format to read. Operators that compute a scale while they run are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from ...common.types import Array
from . import refusals
from .graph import DEQUANTIZE, MICROSOFT, QUANTIZE, Constants, attribute, kind, label, unused_name

_DYNAMIC = frozenset(
    {
        "DynamicQuantizeLinear",
        f"{MICROSOFT}.DynamicQuantizeLSTM",
        f"{MICROSOFT}.DynamicQuantizeMatMul",
    }
)
_INTEGER_PRODUCTS = frozenset({"MatMulInteger", "ConvInteger", f"{MICROSOFT}.MatMulIntegerToFloat"})
_SUFFIX = "_quant"


def is_quantised(model: onnx.ModelProto) -> bool:
    """Tell whether a model holds quantised tensors.

    Parameters
    ----------
    model
        The model.
    """
    nodes = [*model.graph.node, *(node for f in model.functions for node in f.node)]
    return any(
        node.op_type in (QUANTIZE, DEQUANTIZE)
        or kind(node) in _DYNAMIC | _INTEGER_PRODUCTS
        or _is_quantised_operator(node)
        for node in nodes
    )


def _is_quantised_operator(node: onnx.NodeProto) -> bool:
    return node.op_type.startswith("QLinear") or (
        node.domain == MICROSOFT
        and node.op_type
        in ("QGemm", "QAttention", "QEmbedLayerNormalization", "QMoE", "QOrderedMatMul")
    )


def to_qdq(model: onnx.ModelProto) -> onnx.ModelProto:
    """Rewrite quantised operators to DequantizeLinear, a float operator and QuantizeLinear.

    Parameters
    ----------
    model
        A quantised model; not changed.

    Returns
    -------
    onnx.ModelProto
        The same function. Float nodes keep the names of the quantised ones without ONNX Runtime's
        suffix ``_quant``.

    Raises
    ------
    UnsupportedModelError
        If scales are computed from the data, or an operator has no float meaning here.
    """
    result = onnx.ModelProto()
    result.CopyFrom(model)
    _refuse_dynamic(result.graph)
    rewriter = _Rewriter(result.graph)
    nodes = rewriter.run()
    del result.graph.node[:]
    result.graph.node.extend(nodes)
    result.graph.initializer.extend(rewriter.added)
    return result


def _refuse_dynamic(graph: onnx.GraphProto) -> None:
    found = [(node.op_type, label(node)) for node in graph.node if kind(node) in _DYNAMIC]
    if found:
        raise refusals.dynamic(found)


class _Rewriter:
    """Rewrites the nodes of one graph.

    Attributes
    ----------
    added : list of onnx.TensorProto
        New initialisers.
    """

    def __init__(self, graph: onnx.GraphProto) -> None:
        self.graph = graph
        self.constants = Constants(graph)
        self.added: list[onnx.TensorProto] = []
        self.taken = {name for node in graph.node for name in (*node.input, *node.output)}
        self.taken |= {tensor.name for tensor in graph.initializer}
        self.readers: dict[str, list[onnx.NodeProto]] = {}
        for node in graph.node:
            for name in node.input:
                self.readers.setdefault(name, []).append(node)
        self.dropped: set[str] = set()  # by what they compute
        self.nodes: list[onnx.NodeProto] = []
        self.node_names = {node.name for node in graph.node}

    def run(self) -> list[onnx.NodeProto]:
        for node in self.graph.node:
            if node.output[0] in self.dropped:
                continue
            rule = _RULES.get(kind(node))
            if rule is not None:
                rule(self, node)
            elif _is_quantised_operator(node) or kind(node) in _INTEGER_PRODUCTS:
                known = sorted(name.rpartition(".")[2] for name in _RULES)
                raise refusals.unknown_operator(node.op_type, label(node), known)
            else:
                self.nodes.append(node)
        return self.nodes

    # -- building ---------------------------------------------------------------------------

    def constant(self, name: str, array: Array) -> str:
        """Add an initialiser; return its name."""
        name = unused_name(name, self.taken)
        self.added.append(numpy_helper.from_array(array, name))
        return name

    def dequantize(
        self, node: onnx.NodeProto, tensor: str, scale: str, zero: str, axis: int = 1
    ) -> str:
        """Append a DequantizeLinear; return its output."""
        out = unused_name(f"{tensor}.float", self.taken)
        inputs = [tensor, scale, *([zero] if zero else [])]
        name = unused_name(f"{label(node)}.dequantize.{tensor}", self.node_names)
        self.nodes.append(helper.make_node(DEQUANTIZE, inputs, [out], name, axis=axis))
        return out

    def float_node(
        self,
        node: onnx.NodeProto,
        op: str,
        inputs: Sequence[str],
        output: str,
        domain: str = "",
        **attributes: Any,
    ) -> None:
        """Append the float form of `node`."""
        name = label(node).removesuffix(_SUFFIX)
        if name != node.name:
            name = unused_name(name, self.node_names)
        made = helper.make_node(op, list(inputs), [output], name, domain=domain, **attributes)
        self.nodes.append(made)

    def quantized(
        self,
        node: onnx.NodeProto,
        op: str,
        inputs: Sequence[str],
        scale: str,
        zero: str,
        **attributes: Any,
    ) -> None:
        """Append the float form of `node`, and the quantisation of its result."""
        out = unused_name(f"{node.output[0].removesuffix('_quantized')}.float", self.taken)
        self.float_node(node, op, inputs, out, **attributes)
        inputs = [out, scale, *([zero] if zero else [])]
        name = unused_name(f"{label(node)}.quantize", self.node_names)
        self.nodes.append(helper.make_node(QUANTIZE, inputs, [node.output[0]], name))

    def number(self, node: onnx.NodeProto, name: str) -> Array:
        """Return the constant `name`, which must be one."""
        if name not in self.constants:
            raise refusals.scale_is_computed(node.op_type, label(node), name)
        return self.constants[name]

    def require_static(self, node: onnx.NodeProto, *scales: str) -> None:
        """Refuse a node whose scales are computed while the model runs."""
        if any(name not in self.constants for name in scales):
            raise refusals.dynamic([(node.op_type, label(node))])


# -- rules ----------------------------------------------------------------------------------


def _optional(node: onnx.NodeProto, index: int) -> str:
    return str(node.input[index]) if index < len(node.input) else ""


def _quantised(
    op: str, *starts: int, axes: Sequence[int] = (1, 1), **attributes: int
) -> Callable[[_Rewriter, onnx.NodeProto], None]:
    """Return the rule of an operator of quantised operands with a quantised result.

    Parameters
    ----------
    op
        Its float form.
    *starts
        Places of the quantised operands, each followed by scale and zero point; those of the result
        come behind them. What is in front of them is taken as it is.
    axes
        Along which the operands have scales.
    **attributes
        Those that the float form has, and their defaults.
    """
    behind = starts[-1] + 3

    def rule(r: _Rewriter, node: onnx.NodeProto) -> None:
        inputs = list(node.input[: starts[0]])
        for start, axis in zip(starts, axes, strict=False):
            tensor, scale, zero = node.input[start : start + 3]
            inputs.append(r.dequantize(node, tensor, scale, zero, axis))
        given = {name: int(attribute(node, name, default)) for name, default in attributes.items()}
        r.quantized(node, op, inputs, node.input[behind], _optional(node, behind + 1), **given)

    return rule


def _gemm(r: _Rewriter, node: onnx.NodeProto) -> None:
    a, a_scale, a_zero, b, b_scale, b_zero = node.input[:6]
    transposed = int(attribute(node, "transB", 0))
    alpha = float(attribute(node, "alpha", 1.0))
    inputs = [
        r.dequantize(node, a, a_scale, a_zero),
        r.dequantize(node, b, b_scale, b_zero, axis=0 if transposed else 1),
    ]
    if _optional(node, 6):
        # The bias is added to the accumulator, alpha or not.
        product = r.number(node, a_scale) * r.number(node, b_scale) * np.float32(alpha)
        scale = r.constant(f"{node.input[6]}.scale", np.asarray(product, np.float32))
        inputs.append(r.dequantize(node, node.input[6], scale, "", axis=0))
    attributes: dict[str, Any] = {
        "transA": int(attribute(node, "transA", 0)),
        "transB": transposed,
        "alpha": alpha,
    }
    if _optional(node, 7):
        r.quantized(node, "Gemm", inputs, node.input[7], _optional(node, 8), **attributes)
    else:
        r.float_node(node, "Gemm", inputs, node.output[0], **attributes)


def _concat(r: _Rewriter, node: onnx.NodeProto) -> None:
    scale, zero = node.input[:2]
    parts = [
        r.dequantize(node, *node.input[start : start + 3]) for start in range(2, len(node.input), 3)
    ]
    r.quantized(node, "Concat", parts, scale, zero, axis=int(attribute(node, "axis", 0)))


def _attention(r: _Rewriter, node: onnx.NodeProto) -> None:
    """QAttention: integers in, float out; the rest of it is the fused float operator."""
    x, weight, bias, x_scale, weight_scale = node.input[:5]
    r.require_static(node, x_scale, weight_scale)
    inputs = [
        r.dequantize(node, x, x_scale, _optional(node, 6)),
        r.dequantize(node, weight, weight_scale, _optional(node, 7)),
        bias,
        _optional(node, 5),
        _optional(node, 8),
    ]
    while not inputs[-1]:
        inputs.pop()
    attributes: dict[str, Any] = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    r.float_node(node, "Attention", inputs, node.output[0], MICROSOFT, **attributes)


def _product_to_float(r: _Rewriter, node: onnx.NodeProto) -> None:
    """MatMulIntegerToFloat: two integer matrices, their scales and zero points, a bias."""
    a, b, a_scale, b_scale = node.input[:4]
    r.require_static(node, a_scale, b_scale)
    left = r.dequantize(node, a, a_scale, _optional(node, 4))
    right = r.dequantize(node, b, b_scale, _optional(node, 5))
    bias = _optional(node, 6)
    out = unused_name(f"{node.output[0]}.product", r.taken) if bias else node.output[0]
    r.float_node(node, "MatMul", [left, right], out)
    if bias:
        name = unused_name(f"{label(node)}.bias", r.node_names)
        r.nodes.append(helper.make_node("Add", [out, bias], [node.output[0]], name))


def _integer_product(r: _Rewriter, node: onnx.NodeProto) -> None:
    """MatMulInteger, whose int32 result is cast and multiplied by a constant afterwards."""
    a, b = node.input[:2]
    source = next((n for n in r.graph.node if a in n.output), None)
    if source is None or kind(source) != QUANTIZE:
        raise refusals.integer_product(
            label(node), f"its operand {a} does not come from QuantizeLinear"
        )
    a_scale, a_zero = source.input[1], _optional(source, 2)
    cast = _only_reader(r, node.output[0])
    if cast is None or cast.op_type != "Cast":
        raise refusals.integer_product(label(node), "its result is not cast to float")
    multiply = _only_reader(r, cast.output[0])
    factor = None
    if multiply is not None and multiply.op_type == "Mul":
        factor = next((name for name in multiply.input if name != cast.output[0]), None)
    if multiply is None or factor is None or factor not in r.constants:
        raise refusals.integer_product(
            label(node), "its result is not multiplied by a constant scale after the cast"
        )
    s = r.number(source, a_scale)
    scale = np.squeeze(np.asarray(r.constants[factor] / s, np.float32))
    left = r.dequantize(node, a, a_scale, a_zero)
    b_scale = r.constant(f"{b}.scale", scale)
    zero = _optional(node, 3)
    if zero:
        array = np.broadcast_to(np.squeeze(r.number(node, zero)), scale.shape)
        zero = r.constant(f"{zero}.spread", np.ascontiguousarray(array))
    right = r.dequantize(node, b, b_scale, zero)
    r.float_node(node, "MatMul", [left, right], multiply.output[0])
    r.dropped |= {cast.output[0], multiply.output[0]}


def _only_reader(r: _Rewriter, tensor: str) -> onnx.NodeProto | None:
    readers = r.readers.get(tensor, [])
    return readers[0] if len(readers) == 1 else None


_RULES: dict[str, Callable[[_Rewriter, onnx.NodeProto], None]] = {
    "MatMulInteger": _integer_product,
    "QLinearMatMul": _quantised("MatMul", 0, 3, axes=(0, 1)),
    f"{MICROSOFT}.MatMulIntegerToFloat": _product_to_float,
    f"{MICROSOFT}.QAttention": _attention,
    f"{MICROSOFT}.QGemm": _gemm,
    f"{MICROSOFT}.QLinearAdd": _quantised("Add", 0, 3, axes=(-1, -1)),
    f"{MICROSOFT}.QLinearConcat": _concat,
    f"{MICROSOFT}.QLinearMul": _quantised("Mul", 0, 3, axes=(-1, -1)),
    f"{MICROSOFT}.QLinearSigmoid": _quantised("Sigmoid", 0),
    f"{MICROSOFT}.QLinearSoftmax": _quantised("Softmax", 0, axis=-1),
    f"{MICROSOFT}.QLinearWhere": _quantised("Where", 1, 4),
}
"""Rules by operator; ReduceMean and pooling are never quantised by ONNX Runtime."""
