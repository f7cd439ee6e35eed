"""Functions of one value: activations and bounds."""

from __future__ import annotations

from dataclasses import field

from ...dialect.record import Operand, flattened
from ...spec.clipped import ClippedPolynomial
from ...spec.exponential import BinaryExponential
from ...spec.fixed_point import requantise
from ...spec.gelu import gelu_accurate, gelu_paper
from ...spec.logarithm import Logarithm, log1p_relu
from ...spec.logistic import sigmoid, silu
from ...spec.tanh import i_tanh
from ...spec.values import clamp, maximum
from ..checks import check_attribute
from ..domain import Entry
from ..operator import Elementwise
from ..types import NARROW, dtype_bounds


class Relu(Elementwise):
    """``max(x, 0)``, of the same type."""

    OPERANDS = (Operand("x", ("uint8", *NARROW), "... C"),)
    KEEPS = "x"
    STAGE = "relu"

    def entry(self, x: Entry) -> Entry:
        return maximum(x, 0)


FRACTION_BITS = 15


class LeakyRelu(Elementwise):
    """``max(x, (x slope + 2^14) >> 15)``, of the same type.

    Parameters
    ----------
    slope
        In units of 2^-15, 0 to 2^15.
    """

    slope: int

    OPERANDS = (Operand("x", ("int8", "int16", "int32"), "... C"),)
    KEEPS = "x"
    STAGE = "leaky"

    def __post_init__(self) -> None:
        check_attribute(self, "slope", 0, 1 << FRACTION_BITS)

    def entry(self, x: Entry) -> Entry:
        return maximum(x, requantise(x, self.slope, FRACTION_BITS))


class Clip(Elementwise):
    """``min(max(x, low), high)``, of the same type.

    Parameters
    ----------
    low, high
        int32; low does not exceed high.
    """

    low: int
    high: int

    KEEPS = "x"
    STAGE = "clipped"

    def __post_init__(self) -> None:
        least, most = dtype_bounds("int32")
        check_attribute(self, "high", least, most)
        check_attribute(self, "low", least, self.high)

    def entry(self, x: Entry) -> Entry:
        return clamp(x, self.low, self.high)


class Tanh(Elementwise):
    """i-tanh at the scale 2^-fraction_bits.

    Parameters
    ----------
    exponential
        Constants of 2^(-2 |x| log2 e), from ``BinaryExponential.for_tanh(scale)``.
    fraction_bits
        The result's scale is 2^-fraction_bits, its bound 2^fraction_bits - 1.
    """

    exponential: BinaryExponential = field(metadata=flattened("exp", BinaryExponential))
    fraction_bits: int = 15

    dtype = "int32"
    STAGE = "tanh"

    def __post_init__(self) -> None:
        check_attribute(self, "fraction_bits", 1, 15)

    def entry(self, x: Entry) -> Entry:
        return i_tanh(x, self.exponential, self.fraction_bits)


class Sigmoid(Elementwise):
    """``1 / (1 + exp(-x))`` in units of 2^-15, from 1 to 2^15 - 1.

    Parameters
    ----------
    constants
        Of the polynomial.
    """

    constants: ClippedPolynomial = field(metadata=flattened("logistic", ClippedPolynomial))

    dtype = "int16"
    STAGE = "sigmoid"
    NARROW_STAGE = True

    def entry(self, x: Entry) -> Entry:
        return sigmoid(x, self.constants)


class Silu(Elementwise):
    """``x sigmoid(beta x)`` of a value at one scale; the result has the same scale.

    Parameters
    ----------
    constants
        Of the polynomial; beta is in the scale.
    """

    constants: ClippedPolynomial = field(metadata=flattened("logistic", ClippedPolynomial))

    dtype = "int16"
    STAGE = "silu"
    NARROW_STAGE = True

    def entry(self, x: Entry) -> Entry:
        return silu(x, self.constants)


class Gelu(Elementwise):
    """Accurate i-GELU of a value at one scale; the result has the same scale.

    Parameters
    ----------
    constants
        Of the polynomial.
    """

    constants: ClippedPolynomial = field(metadata=flattened("gelu", ClippedPolynomial))

    OPERANDS = (Operand("x", ("int8", "int16"), "... C"),)
    dtype = "int16"
    STAGE = "gelu"
    NARROW_STAGE = True

    def entry(self, x: Entry) -> Entry:
        return gelu_accurate(x, self.constants)


class GeluPaper(Elementwise):
    """Published i-GELU; the operands are the arrays of `PaperGelu`, as are the scales."""

    OPERANDS = (
        Operand("x", NARROW, "... C"),
        Operand("q_b", ("int32",), "1|C"),
        Operand("q_c", ("int64",), "1|C"),
        Operand("q_1", ("int32",), "1|C"),
        Operand("erf_shift", ("int32",), "1|C"),
    )
    dtype = "int64"
    STAGE = "gelu"

    def entry(self, x: Entry, q_b: Entry, q_c: Entry, q_1: Entry, erf_shift: Entry) -> Entry:
        return gelu_paper(x, q_b, q_c, q_1, erf_shift)


class Log1pRelu(Elementwise):
    """``log2(1 + max(x, 0))`` in units of 2^-15.

    Parameters
    ----------
    constants
        Of the input's scale.
    """

    constants: Logarithm = field(metadata=flattened("log", Logarithm))

    dtype = "int32"
    STAGE = "logarithm"

    def entry(self, x: Entry) -> Entry:
        return log1p_relu(x, self.constants)
