"""Lowering of functions of one value: activations and bounds."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from tvm import relax

from ... import integer
from ...canonical.operators.functions import (
    Clip,
    Gelu,
    LeakyRelu,
    Log1pRelu,
    Relu,
    Sigmoid,
    Silu,
    Tanh,
)
from ...integer.operators.functions import FRACTION_BITS as SLOPE_BITS
from ...quantization_table import ActivationQuant
from ...spec.clipped import ClippedFunction, ClippedPolynomial, clipped_scale
from ...spec.exponential import BinaryExponential
from ...spec.gelu import GELU, PaperGelu
from ...spec.logarithm import LOG_BITS, Logarithm, log1p_relu
from ...spec.logistic import SIGMOID, SIGMOID_BITS, SILU
from ...spec.presets import Preset
from ..forms import Form
from ..rule import NATIVE, PLAIN, STREAM, Need, Node, lowers
from ..value import IntegerValue

_TANH_BITS = 15
_CLIPPED_HIGH = 2**14 - 1
_LOGARITHM_HIGH = 2**15 - 1
# The approximation of GELU is below 0.2 in absolute value for negative inputs.
_GELU_LOBE = 0.2
# beta x sigmoid(beta x) is never below -0.2785; the polynomial errs by 0.0035.
_SILU_LOBE = 0.29


@lowers(Relu, need=Need(operands=(NATIVE,), plain=None, one_sided=True))
def relu(node: Node[Relu]) -> IntegerValue:
    """``max(x, 0)`` on whatever integers the producer yields.

    Exact at any positive scale, so it works on the native form (an int32 accumulator with a scale
    per channel, as a rule); only a zero point or a negative scale needs the stream form. Keeps
    type, scale and bound::

        y = relu(x)  →  y = integer.relu(x)
    """
    source = node.x.ordered()
    return node.result(node.emit(source.var), source.scale, source.magnitude)


@lowers(LeakyRelu, need=Need(operands=(STREAM,), plain=True))
def leaky_relu(node: Node[LeakyRelu]) -> IntegerValue:
    """``max(x, slope x)``, the slope in units of 2^-15.

    Keeps type, scale and bound of the stream form, in which a product has 30 bits.
    """
    source = node.x.stream()
    out = node.emit(source.var, slope=round(node.operator.slope * 2**SLOPE_BITS))
    return node.result(out, source.scale, source.magnitude)


@lowers(Clip, need=Need(operands=(STREAM,), plain=True))
def clip(node: Node[Clip]) -> IntegerValue:
    """Bounds rounded to steps of the stream form, which is cut at its own range anyway.

    Keeps type and scale; a bound is off by half a step at most.
    """
    source = node.x.stream()
    bounds = np.array([node.operator.low, node.operator.high])
    steps = np.clip(bounds / source.scale[0], -source.magnitude, source.magnitude)
    low, high = np.floor(steps + 0.5).astype(np.int64).tolist()
    out = node.emit(source.var, low=low, high=high)
    return node.result(out, source.scale, max(abs(low), abs(high), 1))


@lowers(Tanh, need=PLAIN)
def tanh(node: Node[Tanh]) -> IntegerValue:
    """Hyperbolic tangent, in both presets: int32 of 15 bits and the sign at the fixed scale 2^-15.

    Emits ``integer.tanh`` (specification: `i-tanh`).
    """
    source = node.x.scalar()
    exponential = BinaryExponential.for_tanh(float(source.scale[0]))
    out = node.emit(source.var, exponential, fraction_bits=_TANH_BITS)
    return node.result(out, np.array([2.0**-_TANH_BITS]), (1 << _TANH_BITS) - 1)


@lowers(Log1pRelu, need=Need(operands=(STREAM,), plain=True, one_sided=True))
def log1p_of_relu(node: Node[Log1pRelu]) -> IntegerValue:
    """Logarithm of one plus what is positive, in both presets: int32 at the scale ``2^-15 ln 2``.

    Emits ``integer.log1p_relu`` (specification: `i-log1p`).
    """
    source = node.x.stream()
    limit = min(source.magnitude, _LOGARITHM_HIGH)
    constants = Logarithm.from_scale(float(source.scale[0]), limit)
    out = node.emit(source.var, constants)
    scale = np.array([math.ldexp(math.log(2), -LOG_BITS)])
    return node.result(out, scale, int(log1p_relu(limit, constants)))


@dataclass(frozen=True)
class ClippedStream:
    """The stream form that suits a polynomial; equal ones are one wish.

    Parameters
    ----------
    function
        What the polynomial approximates.
    """

    function: ClippedFunction

    def __call__(self, largest: float) -> ActivationQuant:
        """Return the form for values up to `largest`."""
        scale = clipped_scale(self.function.limit, largest)
        return ActivationQuant(scale, -_CLIPPED_HIGH, _CLIPPED_HIGH)

    def read(self, operand: IntegerValue, consumer: str) -> Form:
        """Return the stream form of `operand`, requantised once more where its scale is another."""
        source = operand.stream()
        scale = float(source.scale[0])
        if source.magnitude < 2**15 and self.function.up_shift(scale) is not None:
            return source
        return operand.term(self(scale * source.magnitude), consumer)


def _approximated(
    node: Node[Sigmoid | Silu | Gelu], function: ClippedFunction
) -> tuple[Form, relax.Var]:
    """Emit a polynomial that stays in 16 bits; its operand, and its result, int16."""
    source = ClippedStream(function).read(node.x, node.name)
    constants = ClippedPolynomial.from_scale(float(source.scale[0]), function)
    return source, node.emit(source.var, constants)


@lowers(
    Sigmoid,
    need=Need(operands=(STREAM,), plain=True, one_sided=True, stream_for=ClippedStream(SIGMOID)),
)
def sigmoid(node: Node[Sigmoid]) -> IntegerValue:
    """The logistic function, in both presets: int16 at the fixed scale 2^-15.

    Expects x in stream form at a scale of the polynomial; at any other, x is requantised once more.
    Emits ``integer.sigmoid`` (specification: `i-sigmoid`)::

        y = sigmoid(x)  →  r = integer.requantise(x, m);  y = integer.sigmoid(r)
    """
    _, out = _approximated(node, SIGMOID)
    return node.result(out, np.array([2.0**-SIGMOID_BITS]), 2**SIGMOID_BITS - 1)


def _need_of_silu(preset: Preset, call: relax.Call | None) -> Need:
    beta = 1.0 if call is None else float(call.attrs["beta"])
    wish = ClippedStream(SILU.of_multiple(beta))
    return Need(operands=(STREAM,), one_sided=True, stream_for=wish)


@lowers(Silu, need=_need_of_silu)
def silu(node: Node[Silu]) -> IntegerValue:
    """``x sigmoid(beta x)``, in both presets: int16 at the scale of its input.

    Expects x as `sigmoid` does. Emits ``integer.silu`` (specification: `i-SiLU`).
    """
    beta = node.operator.beta
    source, out = _approximated(node, SILU.of_multiple(beta))
    lobe = math.ceil(_SILU_LOBE / beta / float(source.scale[0]))
    return node.result(out, source.scale, max(source.magnitude, lobe))


def _need_of_gelu(preset: Preset, call: relax.Call | None) -> Need:
    """One scale for the accurate form, any for the published one."""
    if preset.gelu == "polynomial":
        return Need(operands=(STREAM,), one_sided=True, stream_for=ClippedStream(GELU))
    return Need(operands=(NATIVE,), readable=False, one_sided=True)


@lowers(Gelu, need=_need_of_gelu)
def gelu(node: Node[Gelu]) -> IntegerValue:
    """GELU in the form of the preset.

    ``accurate``: expects x in stream form at a scale of the polynomial; at any other, x is
    requantised once more. Emits ``integer.gelu``, int16 at the scale of its input. ``paper``: takes
    what the producer yields, as a rule the int32 accumulator with a scale per channel; emits the
    published form with its constants per channel, int64 at a scale per channel that is negative.
    Both the erf and the tanh definition of GELU lower to the same approximation, which is about as
    coarse as their difference::

        g = gelu(y)  →  r = integer.requantise(y, m);  g = integer.gelu(r)       # accurate
        g = gelu(y)  →  g = integer.gelu_paper(y, q_b, q_c, q_1, erf_shift)      # paper
    """
    if node.preset.gelu == "polynomial":
        source, out = _approximated(node, GELU)
        lobe = math.ceil(_GELU_LOBE / float(source.scale[0]))
        return node.result(out, source.scale, max(source.magnitude, lobe))
    source = node.x.native()
    if source.zero_point != 0 or not (source.scale > 0).all():
        source = node.x.stream()
    constants = PaperGelu.from_scales(source.scale, node.preset.erf_coefficients)
    return node.value(published_gelu(node, source, constants))


def published_gelu(node: Node[Gelu], source: Form, k: PaperGelu) -> Form:
    """Emit the published form with these constants, one or one per channel."""
    arrays = (("q_b", k.q_b), ("q_c", k.q_c), ("q_1", k.q_1), ("erf_shift", k.erf_shift))
    constants = [node.parameter(label, array) for label, array in arrays]
    out = node.context.emit(integer.gelu_paper(source.var, *constants, name=node.name))
    # |i_erf| is at most |q_1|, but for the floors of its constants.
    magnitude = source.magnitude * (2 * int(abs(k.q_1.astype("int64")).max()) + 4)
    return Form(out, node.name, k.scales, 0, magnitude)
