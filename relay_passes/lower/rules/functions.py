"""Lowering of functions of one value: activations and bounds."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import numpy as np
from scipy.special import expit, ndtr
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
from ...dialect.arrays import Reals
from ...errors import RangeError
from ...integer.operators.functions import FRACTION_BITS as SLOPE_BITS
from ...quantization_table import ActivationQuant
from ...spec.clipped import ClippedFunction, ClippedPolynomial, clipped_scale
from ...spec.exponential import BinaryExponential
from ...spec.gelu import GELU, PaperGelu
from ...spec.logarithm import LOG_BITS, Logarithm, log1p_relu
from ...spec.logistic import SIGMOID, SIGMOID_BITS, SILU
from ...spec.nearest_scale import at_nearest_scale, largest_error
from ...spec.presets import Preset
from ..forms import Form
from ..rule import NATIVE, PLAIN, STREAM, Need, Node, lowers
from ..value import IntegerValue

_Constants = TypeVar("_Constants")
_TANH_BITS = 15
_CLIPPED_HIGH = 2**14 - 1
_STREAM_HIGH = 2**15 - 1
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


def _requantised(
    node: Node[Tanh | Log1pRelu], source: Form, derive: Callable[[float], _Constants]
) -> tuple[Form, _Constants]:
    """Return the operand in 16 bits at a scale that is served, and the constants."""
    wide = float(source.scale[0]) * source.magnitude / _STREAM_HIGH
    constants, scale = at_nearest_scale(derive, wide)
    quant = ActivationQuant(scale, -_STREAM_HIGH, _STREAM_HIGH)
    return node.x.term(quant, node.name), constants


@lowers(Tanh, need=PLAIN)
def tanh(node: Node[Tanh]) -> IntegerValue:
    """Hyperbolic tangent, in both presets: int32 of 15 bits and the sign at the fixed scale 2^-15.

    An operand of a scale that is not served is requantised to one that is.
    Emits ``integer.tanh`` (specification: `i-tanh`).
    """
    source = node.x.scalar()
    try:
        exponential = BinaryExponential.for_tanh(float(source.scale[0]))
    except RangeError:
        # Coarser, or cut where the tangent is 1.
        source, exponential = _requantised(node, source, BinaryExponential.for_tanh)
    out = node.emit(source.var, exponential, fraction_bits=_TANH_BITS)
    return node.result(out, np.array([2.0**-_TANH_BITS]), (1 << _TANH_BITS) - 1)


@lowers(Log1pRelu, need=Need(operands=(STREAM,), plain=True, one_sided=True))
def log1p_of_relu(node: Node[Log1pRelu]) -> IntegerValue:
    """Logarithm of one plus what is positive, in both presets: int32 at the scale ``2^-15 ln 2``.

    Emits ``integer.log1p_relu`` (specification: `i-log1p`).
    """
    source = node.x.stream()
    limit = min(source.magnitude, _STREAM_HIGH)
    derive = partial(Logarithm.from_scale, limit=limit)
    try:
        constants = derive(float(source.scale[0]))
    except RangeError:
        if source.scale[0] >= 1:  # a finer scale would cut numbers off
            raise
        source, constants = _requantised(node, source, derive)
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
    saturates
        Whether it is all of the result: what lies beyond the coarsest scale that it serves may be
        cut off.
    """

    function: ClippedFunction
    saturates: bool = False

    def __call__(self, largest: float) -> ActivationQuant:
        """Return the form for values up to `largest`."""
        scale = clipped_scale(self.function.limit, largest)
        if self.saturates:
            scale = at_nearest_scale(self.constants, scale)[1]
        return ActivationQuant(scale, -_CLIPPED_HIGH, _CLIPPED_HIGH)

    def constants(self, scale: float) -> ClippedPolynomial:
        """Derive the polynomial."""
        return ClippedPolynomial.from_scale(scale, self.function)

    def read(self, operand: IntegerValue, consumer: str) -> Form:
        """Return the stream form of `operand`, requantised once more where its scale is another."""
        source = operand.stream()
        scale = float(source.scale[0])
        wish = self(scale * source.magnitude)
        fits = source.magnitude < 2**15
        if fits and (scale == wish.scale or self.function.up_shift(scale) is not None):
            return source
        return operand.term(wish, consumer)


def _times_line(
    node: Node[Silu | Gelu], wish: ClippedStream, line: Callable[[Reals], Reals], lobe: float
) -> IntegerValue:
    """Emit a function that is near 0 or its operand beyond the limit of its polynomial.

    Parameters
    ----------
    node
        The call.
    wish
        The form that it reads. Where its scale is too coarse for the polynomial, constants of a
        finer one are off by a step or two, within some dozens of steps of 0.
    line
        The function.
    lobe
        Bound of its negative results.
    """
    source = wish.read(node.x, node.name)
    scale = float(source.scale[0])

    def error(scale: float, served: float) -> float:
        return largest_error(line, scale, served, source.magnitude, in_steps=True)

    constants, served = node.context.at_served_scale(node.name, wish.constants, scale, error)
    out = node.emit(source.var, constants)
    return node.result(out, source.scale, max(source.magnitude, math.ceil(lobe / served)))


_SIGMOID_STREAM = ClippedStream(SIGMOID, saturates=True)


@lowers(
    Sigmoid, need=Need(operands=(STREAM,), plain=True, one_sided=True, stream_for=_SIGMOID_STREAM)
)
def sigmoid(node: Node[Sigmoid]) -> IntegerValue:
    """The logistic function, in both presets: int16 at the fixed scale 2^-15.

    Expects x in stream form at a scale of the polynomial; at any other, x is requantised once more.
    Emits ``integer.sigmoid`` (specification: `i-sigmoid`)::

        y = sigmoid(x)  →  r = integer.requantise(x, m);  y = integer.sigmoid(r)
    """
    source = _SIGMOID_STREAM.read(node.x, node.name)
    out = node.emit(source.var, _SIGMOID_STREAM.constants(float(source.scale[0])))
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
    wish = ClippedStream(SILU.of_multiple(beta))
    return _times_line(node, wish, lambda x: x * expit(beta * x), _SILU_LOBE / beta)


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
        return _times_line(node, ClippedStream(GELU), _gelu, _GELU_LOBE)
    source = node.x.native()
    if source.zero_point != 0 or not (source.scale > 0).all():
        source = node.x.stream()

    try:
        k = PaperGelu.from_scales(source.scale)
    except RangeError:
        if not node.context.table.calibrated:
            raise
        k = _nearest_gelu(node, source)
    return node.value(published_gelu(node, source, k))


def _nearest_gelu(node: Node[Gelu], source: Form) -> PaperGelu:
    """Constants of each channel at its scale, or the nearest that the published form serves."""

    def derive(scale: float) -> PaperGelu:
        return PaperGelu.from_scales(np.array([scale]))

    def error(scale: float, served: float) -> float:
        return largest_error(_gelu, scale, served, source.magnitude, in_steps=True)

    rows = [node.context.at_served_scale(node.name, derive, s, error) for s in source.scale]
    constants = PaperGelu.joined([channel for channel, _ in rows])
    served = np.array([scale for _, scale in rows])
    return replace(constants, scales=constants.scales * (source.scale / served))


def _gelu(x: Reals) -> Reals:
    return np.asarray(x * ndtr(x))


def published_gelu(node: Node[Gelu], source: Form, k: PaperGelu) -> Form:
    """Emit the published form with these constants, one or one per channel."""
    arrays = (("q_b", k.q_b), ("q_c", k.q_c), ("q_1", k.q_1), ("erf_shift", k.erf_shift))
    constants = [node.parameter(label, array) for label, array in arrays]
    out = node.context.emit(integer.gelu_paper(source.var, *constants, name=node.name))
    # |i_erf| is at most |q_1|, but for the floors of its constants.
    magnitude = source.magnitude * (2 * int(abs(k.q_1.astype("int64")).max()) + 4)
    return Form(out, node.name, k.scales, 0, magnitude)
