"""What a quantised ONNX graph may hold that cannot be honoured, as errors."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import ModelSourceError, UnsupportedModelError


def listed(names: Sequence[str], most: int = 8) -> str:
    """Return names with commas, the first `most` of them and how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def dynamic(nodes: Sequence[tuple[str, str]]) -> UnsupportedModelError:
    """Refuse scales that are computed from the data: (operator, node) of each place."""
    kinds = sorted({kind for kind, _ in nodes})
    return UnsupportedModelError(
        f"the model is quantised dynamically ({', '.join(kinds)})",
        where=f"node{'s' * (len(nodes) > 1)} {listed([node for _, node in nodes])}",
        why="the scales of its activations are floats computed while it runs; an integer-only "
        "program has its scales fixed",
        todo="quantise it statically (onnxruntime.quantization.quantize_static), or give the "
        "float model and --calibration",
    )


def integer_product(node: str, why: str) -> UnsupportedModelError:
    """Refuse a MatMulInteger whose operands or result have no constant scale."""
    return UnsupportedModelError(
        "MatMulInteger is not part of a static quantisation",
        where=f"node {node}",
        why=why,
        todo="use QLinearMatMul or QDQ, or QuantizeLinear with a constant scale before it, and "
        "Cast and Mul by a constant after it",
    )


def unknown_operator(kind: str, node: str, known: Sequence[str]) -> UnsupportedModelError:
    """Refuse a quantised operator without a float meaning here."""
    return UnsupportedModelError(
        f"the quantised operator {kind} is not known",
        where=f"node {node}",
        why=f"its float meaning is known for: {', '.join(known)}",
        todo="export with QuantFormat.QDQ, or leave this operator out of quantisation",
    )


def scale_is_computed(kind: str, node: str, name: str) -> UnsupportedModelError:
    """Refuse a scale or zero point that is no constant."""
    return UnsupportedModelError(
        f"the scale {name or 'without a name'} is not a constant",
        where=f"node {node} ({kind})",
        why="an integer-only program has its scales fixed",
        todo="store scales and zero points as initialisers",
    )


def unusable_scale(node: str, tensor: str, scale: float) -> ModelSourceError:
    """Refuse a scale that stands for nothing, on an edge that the integer program needs."""
    return ModelSourceError(
        f"the scale of {tensor} is {scale:g}",
        where=f"node {node}",
        why="a scale is a finite positive number",
        todo="quantise the model again with calibration data that reaches this tensor",
    )


def odd_scales(where: str, why: str) -> UnsupportedModelError:
    """Refuse scales that do not fit their tensor, or have an axis that nothing here can have."""
    return UnsupportedModelError(
        "the scales do not fit the tensor",
        where=where,
        why=why,
        todo="quantise activations per tensor or along their last axis, weights per tensor or per "
        "output channel",
    )


def strange_type(node: str, dtype: str) -> UnsupportedModelError:
    """Refuse a quantised type that holds no integers."""
    return UnsupportedModelError(
        f"a tensor is quantised to {dtype}",
        where=f"node {node}",
        why="quantised types are int2, int4, int8, int16 and their unsigned forms; int32 for "
        "biases",
        todo="quantise to 8 bits",
    )


def changed_grid(node: str, tensor: str, one: str, other: str) -> UnsupportedModelError:
    """Refuse integers that are read with another scale than they were written with."""
    return UnsupportedModelError(
        f"the integers of {tensor} are read with two scales",
        where=f"node {node}",
        why=f"one is {one}; the other is {other}",
        todo="dequantise with the scale and zero point of the quantisation",
    )


def no_integer_use(kind: str, node: str, tensor: str) -> UnsupportedModelError:
    """Refuse arithmetic on quantised integers outside of the operators made for it."""
    return UnsupportedModelError(
        f"{kind} computes on the integers of {tensor}",
        where=f"node {node}",
        why="integers leave a quantised tensor through DequantizeLinear or a QLinear operator",
        todo="dequantise before this operator",
    )
