"""Approximations of GELU and of the exponential: those of the paper, and what runs here.

Every curve is a function of real numbers. Those of this project are its integer functions at a fine
scale, so what is measured is what is compiled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
from scipy.special import erf

from ibert_tvm.relay_passes.spec.clipped import ClippedPolynomial
from ibert_tvm.relay_passes.spec.exponential import (
    PRINTED_EXPONENTIAL,
    RELEASED_EXPONENTIAL,
    ExponentialCoefficients,
)
from ibert_tvm.relay_passes.spec.gelu import ERF, GELU, gelu_accurate
from ibert_tvm.relay_passes.spec.short_softmax import QUADRATIC, ShortExponential, exponential_of

__all__ = ["EXPONENTIALS", "GELUS", "errors", "exp_errors", "gelu", "gelu_errors"]

Curve = Callable[[np.ndarray], np.ndarray]
_POINTS = 80_001


def gelu(x: np.ndarray) -> np.ndarray:
    """The exact GELU, float64."""
    return np.asarray(0.5 * x * (1 + erf(x / math.sqrt(2))))


def _sigmoid_gelu(x: np.ndarray) -> np.ndarray:
    return np.asarray(x / (1 + np.exp(-1.702 * x)))


def _h_gelu(x: np.ndarray) -> np.ndarray:
    return np.asarray(x * np.clip(1.702 * x + 3, 0, 6) / 6)


def _i_gelu(x: np.ndarray) -> np.ndarray:
    a, b, c = ERF
    y = np.abs(x) / np.sqrt(2.0)
    return np.asarray(0.5 * x * (1 + np.sign(x) * (a * (np.minimum(y, -b) + b) ** 2 + c)))


def _own_gelu(x: np.ndarray) -> np.ndarray:
    scale = GELU.limit / 32640
    # 15 bits around 0 at the finest scale; beyond them it is the identity, or 0.
    q = np.clip(np.round(x / scale), -32767, 32767).astype(np.int64)
    inside = gelu_accurate(q, ClippedPolynomial.from_scale(scale, GELU)) * scale
    return np.where(np.abs(x) < GELU.limit, inside, np.maximum(x, 0))


GELUS: Mapping[str, Curve] = {
    "x sigmoid(1.702 x)": _sigmoid_gelu,
    "h-GELU": _h_gelu,
    "i-GELU": _i_gelu,
    "ours, 16-bit integers": _own_gelu,
}
"""By name, in the paper's order."""


def _quadratic(k: ExponentialCoefficients) -> Curve:
    return lambda x: k.a * (x + k.b) * (x + k.d) + k.c


def _minimax(x: np.ndarray) -> np.ndarray:
    return np.asarray(0.3573894 * x * x + 0.9656078 * x + 0.9987444)


def _own_polynomial(x: np.ndarray) -> np.ndarray:
    c0, c1, c2 = QUADRATIC
    p = -x / math.log(2)
    return np.asarray(c0 - p * (c1 - p * c2))


def _own_exponential(x: np.ndarray) -> np.ndarray:
    scale = 1e-5
    scores = np.round(x / scale).astype(np.int64)
    found = exponential_of(scores, np.zeros_like(scores), ShortExponential.from_scale(scale))
    return np.asarray(found) / 255


EXPONENTIALS: Mapping[str, Curve] = {
    "i-exp, as printed": _quadratic(PRINTED_EXPONENTIAL),
    "i-exp, as released": _quadratic(RELEASED_EXPONENTIAL),
    "the best quadratic (minimax)": _minimax,
    "ours, the polynomial of 2^-p": _own_polynomial,
    "ours, integers of 8 bits (0 to 255)": _own_exponential,
}
"""On (-ln 2, 0], by name."""


def errors(curve: Curve, exact: Curve, low: float, high: float) -> tuple[float, float]:
    """Return the root of the mean square and the largest absolute difference on an interval.

    Parameters
    ----------
    curve, exact : callable
        Functions of float64 arrays.
    low, high : float
        Ends of the interval.

    Returns
    -------
    tuple of float
        What the paper calls L2 and L-infinity distance.
    """
    x = np.linspace(low, high, _POINTS)
    difference = curve(x) - exact(x)
    return float(np.sqrt((difference**2).mean())), float(np.abs(difference).max())


def gelu_errors() -> dict[str, tuple[float, float]]:
    """Errors of all of `GELUS` on [-4, 4], as in the paper's table 1."""
    return {name: errors(curve, gelu, -4, 4) for name, curve in GELUS.items()}


def exp_errors() -> dict[str, tuple[float, float]]:
    """Errors of all of `EXPONENTIALS` on (-ln 2, 0]."""
    low = -math.log(2) * (1 - 1e-9)
    return {name: errors(curve, np.exp, low, 0) for name, curve in EXPONENTIALS.items()}
