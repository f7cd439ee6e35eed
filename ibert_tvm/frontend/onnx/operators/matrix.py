"""Translations of matrix products, normalisations and reductions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from tvm import relax
from tvm.relax import op

from ..translator import Node, Translator, operator, unary
from ..values import Known, Operand, Traced, Untranslatable
from .layout import transpose_last

_REDUCE: dict[str, Callable[..., relax.Expr]] = {
    "ReduceL2": op.sum,
    "ReduceMax": op.max,
    "ReduceMean": op.mean,
    "ReduceMin": op.min,
    "ReduceProd": op.prod,
    "ReduceSum": op.sum,
    "ReduceSumSquare": op.sum,
}


@operator("MatMul")
def _matmul(t: Translator, node: Node) -> Traced:
    left, right = node.tensors(2)
    return t.emit(op.matmul(t.expr(node, left), t.expr(node, right)), left, right)


@operator("Gemm")
def gemm(t: Translator, node: Node) -> Traced:
    """Emit a matrix product with its bias."""
    x = node.traced()
    alpha, beta = (float(node.attributes.get(name, 1.0)) for name in ("alpha", "beta"))
    if node.attributes.get("transA", 0):
        x = t.emit(op.permute_dims(x.var), x)
    weight = node.tensors(2)[1]
    if node.attributes.get("transB", 0):
        weight = transpose_last(t, weight)
    if isinstance(weight, Known) and alpha != 1.0:
        weight = Known(weight.array * np.float32(alpha), weight.name)
    result = t.emit(op.matmul(x.var, t.expr(node, weight)), x, weight)
    if isinstance(weight, Traced) and alpha != 1.0:
        result = t.emit(op.multiply(result.var, relax.const(alpha, x.dtype)), result)
    bias = node.operand(2)
    if bias is not None:
        if beta != 1.0:
            if isinstance(bias, Traced):
                bias = t.emit(op.multiply(bias.var, relax.const(beta, x.dtype)), bias)
            else:
                bias = Known(bias.array * np.float32(beta), bias.name)
        result = t.emit(op.add(result.var, t.expr(node, bias, "bias")), result, bias)
    return result


@unary("Softmax")
def _softmax(t: Translator, node: Node, x: Traced) -> Traced:
    rank = len(x.shape)
    axis = int(node.attributes.get("axis", 1 if node.version < 13 else -1)) % rank
    if node.version < 13 and axis != rank - 1:
        raise Untranslatable(
            f"in operator set {node.version} it normalises over all axes from {axis} on, not one"
        )
    return t.emit(op.nn.softmax(x.var, axis - rank), x)


@unary("LayerNormalization")
def _layer_normalization(t: Translator, node: Node, x: Traced) -> Traced:
    rank = len(x.shape)
    first = int(node.attributes.get("axis", -1)) % rank - rank
    given = (x, node.tensors(2)[1], node.operand(2))
    return layer_norm(t, node, *given, epsilon=epsilon_of(node, 1e-5), axes=range(first, 0))


@operator("BatchNormalization")
def _batch_normalization(t: Translator, node: Node) -> Traced:
    if node.attributes.get("training_mode", 0):
        raise Untranslatable("it normalises by statistics of the batch")
    x = node.traced()
    given = [item for item in node.tensors(5)[1:] if isinstance(item, Known)]
    if len(given) < 4:
        raise Untranslatable("its statistics are computed from the inputs")
    gamma, beta, mean, variance = (item.array.astype(np.float64) for item in given)
    factors = gamma / np.sqrt(variance + epsilon_of(node, 1e-5))
    shape = (-1, *(1,) * (len(x.shape) - 2))
    scale, row = (
        Known(array.astype(np.float32).reshape(shape), source.name)
        for array, source in ((factors, given[0]), (beta - mean * factors, given[1]))
    )
    scaled = t.emit(op.multiply(x.var, t.expr(node, scale, weight=True)), x)
    return t.emit(op.add(scaled.var, t.expr(node, row, "bias", weight=True)), x)


def epsilon_of(node: Node, default: float) -> float:
    """Return the epsilon of a node: the decimal number that its float32 stands for."""
    return float(str(np.float32(node.attributes.get("epsilon", default))))


def layer_norm(
    t: Translator,
    node: Node,
    x: Traced,
    gamma: Operand,
    beta: Operand | None,
    *,
    epsilon: float,
    axes: Sequence[int] = (-1,),
) -> Traced:
    """Emit a LayerNorm; without `beta` it is 0."""
    if not isinstance(gamma, Known) or not isinstance(beta, Known | None):
        raise Untranslatable("its scale or bias is computed from the inputs")
    if beta is None:
        beta = Known(np.zeros_like(gamma.array), "")
    parts = [t.expr(node, gamma), t.expr(node, beta, "bias")]
    call = op.nn.layer_norm(x.var, *parts, axes=list(axes), epsilon=epsilon)
    return t.emit(call, x)


def rms_norm(
    t: Translator, node: Node, x: Traced, gamma: Operand | None, *, epsilon: float
) -> Traced:
    """Emit an RMSNorm over the last axis."""
    if not isinstance(gamma, Known):
        raise Untranslatable("its scale is computed from the inputs")
    call = op.nn.rms_norm(x.var, t.expr(node, gamma), axes=[-1], epsilon=epsilon)
    return t.emit(call, x)


@unary(*_REDUCE)
def _reduce(t: Translator, node: Node, x: Traced) -> Traced:
    axes = node.integers(1, "axes") or None
    squares = node.op in ("ReduceL2", "ReduceSumSquare")
    if squares:
        x = t.emit(op.multiply(x.var, x.var), x)
    elif axes is None and node.attributes.get("noop_with_empty_axes", 0):
        return x
    total = t.emit(_REDUCE[node.op](x.var, axes, bool(node.attributes.get("keepdims", 1))), x)
    return t.emit(op.sqrt(total.var), x) if node.op == "ReduceL2" else total


_LEAST = 1e-12


@unary("LpNormalization")
def _normalise(t: Translator, node: Node, x: Traced) -> Traced:
    if int(node.attributes.get("p", 2)) != 2:
        raise Untranslatable("it divides by another norm than the Euclidean one")
    axis = int(node.attributes.get("axis", -1))
    total = t.emit(op.sum(t.emit(op.multiply(x.var, x.var), x).var, [axis], True), x)
    length = t.emit(op.sqrt(total.var), x)
    # A row of zeros stays one, as in ONNX Runtime.
    positive = t.emit(op.maximum(length.var, relax.const(_LEAST, x.dtype)), x)
    return t.emit(op.divide(x.var, positive.var), x)
