"""Recognition of activation functions by their values.

Exporters spell GELU in a dozen ways (Div-Erf-Add-Mul-Mul, the tanh form with a cube or a power,
constants on either side). Instead of one pattern per spelling, the operators are evaluated on a
grid and the result is compared with the functions that have an integer form.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import erf, sqrt
from typing import Any, TypeVar

import numpy as np

from ...common.types import Doubles

_Fit = TypeVar("_Fit")

GRID: Doubles = np.linspace(-12.0, 12.0, 4801)
"""Where functions are compared: dense, symmetric, through 0, far into both tails."""

# The forms differ by up to 5e-4, constants rounded to float32 move them by less than 1e-6.
_TOLERANCE = 2e-6

_ERF = np.vectorize(erf, otypes=[np.float64])


def _gelu(x: Doubles) -> Doubles:
    return 0.5 * x * (1.0 + _ERF(x / sqrt(2.0)))


def _gelu_tanh(x: Doubles) -> Doubles:
    return 0.5 * x * (1.0 + np.tanh(sqrt(2.0 / np.pi) * (x + 0.044715 * x**3)))


UNARY: dict[str, Callable[[Any], Any]] = {
    "relax.abs": np.abs,
    "relax.cos": np.cos,
    "relax.erf": _ERF,
    "relax.exp": np.exp,
    "relax.log": np.log,
    "relax.negative": np.negative,
    "relax.nn.gelu": _gelu,
    "relax.nn.gelu_tanh": _gelu_tanh,
    "relax.nn.relu": lambda x: np.maximum(x, 0.0),
    "relax.nn.silu": lambda x: x / (1.0 + np.exp(-x)),
    "relax.rsqrt": lambda x: 1.0 / np.sqrt(x),
    "relax.sigmoid": lambda x: 1.0 / (1.0 + np.exp(-x)),
    "relax.sin": np.sin,
    "relax.sqrt": np.sqrt,
    "relax.square": np.square,
    "relax.tanh": np.tanh,
}
"""Operators of one operand, elementwise."""

BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "relax.add": np.add,
    "relax.divide": np.divide,
    "relax.maximum": np.maximum,
    "relax.minimum": np.minimum,
    "relax.multiply": np.multiply,
    "relax.power": np.power,
    "relax.subtract": np.subtract,
}
"""Operators of two operands, elementwise."""

ELEMENTWISE: dict[str, Callable[..., Any]] = {**UNARY, **BINARY}
"""All of them."""

UNBOUNDED = float(np.finfo(np.float32).max)
"""A bound that is none; its negative is none below."""

_KNOWN: tuple[tuple[str, dict[str, Any], Doubles], ...] = (
    ("gelu", {"form": "erf"}, _gelu(GRID)),
    ("gelu", {"form": "tanh"}, _gelu_tanh(GRID)),
    ("relu", {}, np.maximum(GRID, 0.0)),
    ("tanh", {}, np.tanh(GRID)),
    ("sigmoid", {}, UNARY["relax.sigmoid"](GRID)),
    ("log1p_relu", {}, np.log1p(np.maximum(GRID, 0.0))),
)
_SILU = ("silu", {"beta": 1.0}, UNARY["relax.nn.silu"](GRID))
_BETAS = (1 / 16, 16.0)
"""Where a SiLU is one: beyond, it is hardly told from a straight line, or from relu."""
_ONE = int(np.flatnonzero(np.isclose(GRID, 1.0))[0])

KNOWN = (
    "gelu (erf or tanh form), silu (quick-GELU is one), relu, leaky relu, tanh, sigmoid, "
    "log(1 + relu), a line that is clipped (ReLU6, hard sigmoid), x times one (hard swish)"
)
"""The functions, for messages."""


def name_function(samples: Doubles) -> tuple[str, dict[str, Any]] | None:
    """Return operator and attributes of the canonical function with these values on `GRID`.

    Parameters
    ----------
    samples
        float64, as `GRID`.

    Returns
    -------
    tuple of str and dict, or None
        None if there is none.
    """
    for name, attributes, curve in _KNOWN:
        if _same(samples, curve):
            return name, dict(attributes)
    beta = _silu_beta(samples)
    if beta is not None:
        return "silu", {"beta": beta}
    slope = _six_digits(float(samples[0] / GRID[0]))
    if 0 < slope < 1 and _same(samples, np.maximum(GRID, slope * GRID)):
        return "leaky_relu", {"slope": slope}
    return None


@dataclass(frozen=True)
class ClippedLine:
    """``min(max(slope x + offset, low), high)``; `UNBOUNDED` where there is no bound."""

    slope: float
    offset: float
    low: float
    high: float


def clipped_line(samples: Doubles) -> ClippedLine | None:
    """Return the clipped line with these values on `GRID`; None if it is none.

    Parameters
    ----------
    samples
        float64, as `GRID`.

    Returns
    -------
    ClippedLine or None
        None too for a straight line, and where a bound is met outside of the grid.
    """
    low, high = float(samples.min()), float(samples.max())
    margin = _TOLERANCE * (1.0 + max(abs(low), abs(high)))
    inside = np.flatnonzero((samples > low + margin) & (samples < high - margin))
    if inside.size < 2 or inside.size >= GRID.size - 2:
        return None
    first, last = inside[[0, -1]]
    slope = float((samples[last] - samples[first]) / (GRID[last] - GRID[first]))
    offset = float(samples[first] - slope * GRID[first])
    curve = slope * GRID + offset
    if not _same(samples, np.clip(curve, low, high)):
        return None
    bounds = (
        _six_digits(bound) if np.count_nonzero(np.abs(samples - bound) <= margin) > 2 else limit
        for bound, limit in ((low, -UNBOUNDED), (high, UNBOUNDED))
    )
    return ClippedLine(_six_digits(slope), _six_digits(offset), *bounds)


def clipped_gate(samples: Doubles) -> ClippedLine | None:
    """Return the clipped line that x is multiplied by to give these values; None if it is none."""
    zero = int(np.flatnonzero(np.isclose(GRID, 0.0, atol=1e-9))[0])
    if abs(samples[zero]) > _TOLERANCE:
        return None
    factors = samples / np.where(np.arange(GRID.size) == zero, 1.0, GRID)
    factors[zero] = (factors[zero - 1] + factors[zero + 1]) / 2
    return clipped_line(factors)


def _six_digits(number: float) -> float:
    """Constants are rounded to float32, and known from values that are."""
    rounded = float(f"{number:.6g}")
    return 0.0 if abs(rounded) < _TOLERANCE else rounded


def before_norm(fits: Callable[[Doubles], _Fit | None]) -> tuple[str, dict[str, Any], _Fit] | None:
    """Find the known function whose values a norm was taken of.

    Parameters
    ----------
    fits
        Takes the values of a function on `GRID`; returns what they fit, or None.

    Returns
    -------
    tuple of str, dict and what fits, or None
        Operator and attributes of the function; None if there is none.
    """
    for name, attributes, curve in (*_KNOWN, _SILU):
        found = fits(curve)
        if found is not None:
            return name, dict(attributes), found
    return None


def _same(samples: Doubles, curve: Doubles) -> bool:
    return bool(np.all(np.abs(samples - curve) <= _TOLERANCE * (1.0 + np.abs(GRID))))


def _silu_beta(samples: Doubles) -> float | None:
    """Beta of ``x sigmoid(beta x)``, which is sigmoid(beta) at 1; None if it is another function.

    Six digits: constants are rounded to float32.
    """
    gate = float(samples[_ONE])
    if not 0.5 < gate < 1.0:
        return None
    beta = _six_digits(float(np.log(gate / (1.0 - gate))))
    if not _BETAS[0] <= beta <= _BETAS[1]:
        return None
    return beta if _same(samples, GRID * UNARY["relax.sigmoid"](beta * GRID)) else None


def slope(samples: Doubles) -> float | None:
    """Return c if the function is x -> c x, else None."""
    constant = float(samples[-1] / GRID[-1])
    scale = max(abs(constant), 1e-30)
    if np.all(np.abs(samples - constant * GRID) <= 1e-9 * scale * (1.0 + np.abs(GRID))):
        return constant
    return None
