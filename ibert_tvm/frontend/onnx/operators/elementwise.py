"""Translations of elementwise operators."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import numpy as np
from onnx import helper
from tvm import relax
from tvm.relax import op

from ..reading import type_name
from ..translator import ORT, Node, Translator, operator, unary
from ..values import Known, Operand, Traced, Untranslatable, constant
from .layout import look_up

_UNARY: dict[str, Callable[[relax.Expr], relax.Expr]] = {
    "Abs": op.abs,
    "Ceil": op.ceil,
    "Cos": op.cos,
    "Erf": op.erf,
    "Exp": op.exp,
    "Floor": op.floor,
    "IsNaN": op.isnan,
    "Log": op.log,
    "Neg": op.negative,
    "Not": op.logical_not,
    "Relu": op.nn.relu,
    "Round": op.round,
    "Sigmoid": op.sigmoid,
    "Sign": op.sign,
    "Sin": op.sin,
    "Sqrt": op.sqrt,
    "Tanh": op.tanh,
}

_BINARY: dict[str, Callable[[relax.Expr, relax.Expr], relax.Expr]] = {
    "Add": op.add,
    "And": op.logical_and,
    "BitwiseAnd": op.bitwise_and,
    "BitwiseOr": op.bitwise_or,
    "Equal": op.equal,
    "Greater": op.greater,
    "GreaterOrEqual": op.greater_equal,
    "Less": op.less,
    "LessOrEqual": op.less_equal,
    "Mul": op.multiply,
    "Or": op.logical_or,
    "Sub": op.subtract,
    "Xor": op.logical_xor,
}

_VARIADIC: dict[str, Callable[[relax.Expr, relax.Expr], relax.Expr]] = {
    "Max": op.maximum,
    "Min": op.minimum,
    "Sum": op.add,
}


@unary(*_UNARY)
def _unary(t: Translator, node: Node, x: Traced) -> Traced:
    return t.emit(_UNARY[node.op](x.var), x)


@operator(*_BINARY)
def _binary(t: Translator, node: Node) -> Traced:
    return binary(t, node, _BINARY[node.op])


def binary(
    t: Translator, node: Node, make: Callable[[relax.Expr, relax.Expr], relax.Expr]
) -> Traced:
    """Emit an operator of two operands; an array added to a hidden tensor is a weight."""
    left, right = node.tensors(2)
    part = "bias" if node.op == "Add" else "weight"
    if node.op == "Add":
        left, right = (_row_per_token(t, node, a, b) for a, b in ((left, right), (right, left)))
    a, b = (t.expr(node, x, part, weight=not _tokens(left, right)) for x in (left, right))
    return t.emit(make(a, b), left, right)


def _row_per_token(t: Translator, node: Node, value: Operand, other: Operand) -> Operand:
    """Take a table of one row per token, of a graph for one length, for a look-up of positions.

    Exporters of such graphs compute what does not depend on the inputs, for every row of the batch
    and every token; what is repeated is taken once.
    """
    length = t.shape.static[1]
    if isinstance(value, Traced) or not isinstance(other, Traced) or length is None:
        return value
    array = value.array
    if array.dtype.kind != "f" or array.ndim != 3 or array.shape[2] == 1 or other.tokens:
        return value
    for axis in (0, 1):
        first = array[:1] if axis == 0 else array[:, :1]
        array = first if np.array_equal(array, np.broadcast_to(first, array.shape)) else array
    if array.shape[:2] != (1, length):
        return Known(array, value.name)
    places = Known(np.arange(length).reshape(1, length))
    return look_up(t, node, Known(array[0], value.name), places)


def _tokens(*operands: Operand) -> bool:
    return all(item.tokens for item in operands if isinstance(item, Traced))


@operator(*_VARIADIC)
def _variadic(t: Translator, node: Node) -> Traced:
    operands = node.tensors(len(node.operands))
    weight = not _tokens(*operands)

    def step(a: Operand, b: Operand) -> Traced:
        left, right = (t.expr(node, x, "bias", weight=weight) for x in (a, b))
        return t.emit(_VARIADIC[node.op](left, right), a, b)

    result = reduce(step, operands)
    if isinstance(result, Known):
        raise Untranslatable("it has one operand, and that is a constant")
    return result


@operator("Div")
def _divide(t: Translator, node: Node) -> Traced:
    # ONNX truncates integers; exporters divide shapes and positions, which are not negative.
    whole = "int" in node.tensors(2)[0].dtype
    return binary(t, node, op.floor_divide if whole else op.divide)


@operator("Mod")
def _mod(t: Translator, node: Node) -> Traced:
    return binary(t, node, op.mod if node.attributes.get("fmod", 0) else op.floor_mod)


@operator("Pow")
def _power(t: Translator, node: Node) -> Traced:
    base, exponent = node.tensors(2)
    if isinstance(base, Traced) and isinstance(exponent, Known):
        # The exponent may have another type than the base.
        array = np.asarray(exponent.array, base.dtype)
        return t.emit(op.power(base.var, constant(array)), base)
    return binary(t, node, op.power)


@unary("Reciprocal")
def _reciprocal(t: Translator, node: Node, x: Traced) -> Traced:
    return t.emit(op.divide(relax.const(1.0, x.dtype), x.var), x)


@unary("Clip")
def _clip(t: Translator, node: Node, x: Traced) -> Traced:
    for index, name, make in ((1, "min", op.maximum), (2, "max", op.minimum)):
        bound = node.attributes.get(name)
        if bound is None:
            bound = node.constant(index, name)
        if bound is not None:
            limit = relax.const(np.asarray(bound, x.dtype).reshape(()))
            x = t.emit(make(x.var, limit), x)
    return x


@unary("LeakyRelu")
def _leaky_relu(t: Translator, node: Node, x: Traced) -> Traced:
    return t.emit(op.nn.leakyrelu(x.var, float(node.attributes.get("alpha", 0.01))), x)


@unary("HardSigmoid", "HardSwish")
def _hard(t: Translator, node: Node, x: Traced) -> Traced:
    swish = node.op == "HardSwish"
    alpha = 1 / 6 if swish else float(node.attributes.get("alpha", 0.2))
    beta = 0.5 if swish else float(node.attributes.get("beta", 0.5))
    line = t.emit(op.multiply(x.var, relax.const(alpha, x.dtype)), x)
    line = t.emit(op.add(line.var, relax.const(beta, x.dtype)), x)
    gate = t.emit(op.clip(line.var, 0.0, 1.0), x)
    return t.emit(op.multiply(x.var, gate.var), x) if swish else gate


@operator("Where")
def _where(t: Translator, node: Node) -> Traced:
    operands = node.tensors(3)
    weight = not _tokens(*operands)
    parts = [t.expr(node, x, weight=weight and x is not operands[0]) for x in operands]
    # A mask value of the shape of the scores is still a number, and no weight.
    for index in (1, 2):
        value = operands[index]
        if isinstance(value, Known) and np.all(value.array == value.array.flat[0]):
            parts[index] = constant(value.array)
    return t.emit(op.where(*parts), *operands)


@unary("Cast")
def _cast(t: Translator, node: Node, x: Traced) -> Traced:
    wanted = node.attributes["to"]
    try:
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(wanted))
    except KeyError:
        raise Untranslatable(f"it casts to {type_name(wanted)}, which is no element type") from None
    return cast(t, x, str(dtype))


@unary("CastLike")
def _cast_like(t: Translator, node: Node, x: Traced) -> Traced:
    return cast(t, x, node.tensors(2)[1].dtype)


def cast(t: Translator, x: Traced, dtype: str) -> Traced:
    """Cast `x`; the same value if it has the type already."""
    if x.dtype == dtype:
        return x
    if dtype == "bool":  # a number is true unless it is 0, also a fraction
        return t.emit(op.not_equal(x.var, relax.const(0, x.dtype)), x)
    return t.emit(op.astype(x.var, dtype), x)


@unary("Gelu")
@unary("Gelu", "BiasGelu", "FastGelu", domain=ORT)
def _gelu(t: Translator, node: Node, x: Traced) -> Traced:
    bias = node.operand(1)
    if bias is not None:
        x = t.emit(op.add(x.var, t.expr(node, bias, "bias")), x, bias)
    tanh = node.op == "FastGelu" or node.attributes.get("approximate", b"none") == b"tanh"
    return t.emit((op.nn.gelu_tanh if tanh else op.nn.gelu)(x.var), x)


@unary("Swish")
@unary("QuickGelu", domain=ORT)
def _swish(t: Translator, node: Node, x: Traced) -> Traced:
    alpha = float(node.attributes.get("alpha", 1.702 if node.op == "QuickGelu" else 1.0))
    inner = t.emit(op.multiply(x.var, relax.const(alpha, x.dtype)), x)
    gate = t.emit(op.sigmoid(inner.var), x)
    return t.emit(op.multiply(x.var, gate.var), x)
