"""Functions of one value: activations and bounds."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from ...dialect.arrays import Floats
from ...dialect.record import Operand
from ..operator import FLOAT, CanonicalOperator


class Function(CanonicalOperator, abstract=True):
    """Base of functions of one value, elementwise."""

    OPERANDS: ClassVar[tuple[Operand, ...]] = (Operand("x", FLOAT, "... C"),)
    RESULT: ClassVar[str] = "... C"


class Relu(Function):
    """``max(x, 0)``, elementwise."""

    ELEMENTWISE = True

    def evaluate(self, x: Floats) -> Floats:
        return np.maximum(x, np.float32(0))


class LeakyRelu(Function):
    """``max(x, slope x)``, elementwise.

    Parameters
    ----------
    slope
        Between 0 and 1.
    """

    slope: float

    def __post_init__(self) -> None:
        if not 0 < self.slope < 1:
            raise self.refused(
                f"slope is {self.slope}",
                "max(x, slope x) is a leaky ReLU of a slope between 0 and 1",
                "use relu for 0",
            )

    def evaluate(self, x: Floats) -> Floats:
        return np.maximum(x, x * np.float32(self.slope))


class Clip(Function):
    """``min(max(x, low), high)``, elementwise.

    Parameters
    ----------
    low, high
        The bounds, low below high; a bound of float32 itself is none.
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        limit = float(np.finfo(np.float32).max)
        if not -limit <= self.low < self.high <= limit:
            raise self.refused(
                f"the bounds are {self.low} and {self.high}",
                "the lower one is below the upper one, and both are numbers of float32",
                "give 0 and 6 for ReLU6",
            )

    def evaluate(self, x: Floats) -> Floats:
        return np.clip(x, np.float32(self.low), np.float32(self.high))


class Tanh(Function):
    """Hyperbolic tangent, elementwise."""

    ELEMENTWISE = True

    def evaluate(self, x: Floats) -> Floats:
        return np.tanh(x)


class Sigmoid(Function):
    """``1 / (1 + exp(-x))``, elementwise."""

    ELEMENTWISE = True

    def evaluate(self, x: Floats) -> Floats:
        return logistic(x)


def logistic(x: Floats) -> Floats:
    """By the hyperbolic tangent, which overflows nowhere."""
    result = np.tanh(x * np.float32(0.5))
    result += np.float32(1)
    result *= np.float32(0.5)
    return result


class Silu(Function):
    """``x sigmoid(beta x)``, elementwise.

    Parameters
    ----------
    beta
        Positive: 1 for SiLU, 1.702 for quick-GELU.
    """

    beta: float = 1.0

    ELEMENTWISE = True

    def __post_init__(self) -> None:
        if not 0 < self.beta < float("inf"):
            raise self.refused(
                f"beta is {self.beta}",
                "x sigmoid(beta x) is SiLU of a positive beta",
                "use 1 for SiLU, 1.702 for quick-GELU",
            )

    def evaluate(self, x: Floats) -> Floats:
        result = logistic(x * np.float32(self.beta))
        result *= x
        return result


GELU_FORMS = ("erf", "tanh")


class Gelu(Function):
    """``x Phi(x)``, elementwise.

    Parameters
    ----------
    form : {"erf", "tanh"}
        Exact, or the usual approximation.
    """

    form: str = "erf"

    ELEMENTWISE = True

    def __post_init__(self) -> None:
        self.choose("form", self.form, GELU_FORMS)

    def evaluate(self, x: Floats) -> Floats:
        if self.form == "erf" and isinstance(x, np.ndarray):
            return _exact_gelu(x)
        if self.form == "erf":  # of tensors, which stand in for arrays and have gradients
            from scipy.special import erf

            result = erf(x * np.float32(0.5**0.5))
        else:
            result = x * x
            result *= np.float32(0.044715)
            result += np.float32(1)
            result *= x
            result *= np.float32((2 / np.pi) ** 0.5)
            np.tanh(result, out=result)
        result += np.float32(1)
        result *= x
        result *= np.float32(0.5)
        return result


# erfc(t) = exp(-t^2) P(1 / (1 + p t)), t >= 0, within 1.5e-7: Abramowitz and Stegun, 7.1.26. By
# NumPy's exponential it takes a third of the time of SciPy's erf.
_ERFC_P = np.float32(0.3275911)
_ERFC_LAST, *_ERFC = map(
    np.float32, (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)
)
# Entries whose intermediates stay in the cache.
_ENTRIES = 2**14


def _exact_gelu(x: Floats) -> Floats:
    """``max(x, 0) - |x| erfc(|x| / sqrt 2) / 2``, which keeps its digits in both tails."""
    result = np.empty(x.shape, np.float32)
    entries, results = x.reshape(-1), result.reshape(-1)
    half, root = np.float32(0.5), np.float32(0.5**0.5)
    for start in range(0, entries.size, _ENTRIES):
        part, out = (whole[start : start + _ENTRIES] for whole in (entries, results))
        size = np.abs(part)
        np.multiply(size, _ERFC_P * root, out=out)
        out += np.float32(1)
        np.reciprocal(out, out=out)
        tail = out * _ERFC_LAST
        for coefficient in _ERFC:
            tail += coefficient
            tail *= out
        np.multiply(size, size, out=out)
        out *= -half
        np.exp(out, out=out)
        tail *= out
        tail *= size
        tail *= half
        np.maximum(part, np.float32(0), out=out)
        out -= tail
    return result


class Log1pRelu(Function):
    """``log(1 + max(x, 0))``, elementwise: the saturation of SPLADE's term weights.

    Source: SPLADE, https://arxiv.org/abs/2107.05720, equation 1.
    """

    def evaluate(self, x: Floats) -> Floats:
        return np.log1p(np.maximum(x, 0))
