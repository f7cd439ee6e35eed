"""Recognition of activation functions by their values.

Exporters spell GELU in a dozen ways (Div-Erf-Add-Mul-Mul, the tanh form with a cube or a power,
constants on either side). Instead of one pattern per spelling, the operators are evaluated on a
grid and the result is compared with the functions that have an integer form.
"""

from __future__ import annotations

from collections.abc import Callable
from math import erf, sqrt
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

_Fit = TypeVar("_Fit")

GRID: NDArray[np.float64] = np.linspace(-12.0, 12.0, 4801)
"""Where functions are compared: dense, symmetric, through 0, far into both tails."""

# The forms differ by up to 5e-4, constants rounded to float32 move them by less than 1e-6.
_TOLERANCE = 2e-6

_ERF = np.vectorize(erf, otypes=[np.float64])


def _gelu(x: NDArray[np.float64]) -> NDArray[np.float64]:
    result: NDArray[np.float64] = 0.5 * x * (1.0 + _ERF(x / sqrt(2.0)))
    return result


def _gelu_tanh(x: NDArray[np.float64]) -> NDArray[np.float64]:
    result: NDArray[np.float64] = (
        0.5 * x * (1.0 + np.tanh(sqrt(2.0 / np.pi) * (x + 0.044715 * x**3)))
    )
    return result


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

_KNOWN: tuple[tuple[str, dict[str, Any], NDArray[np.float64]], ...] = (
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

KNOWN = "gelu (erf or tanh form), silu (quick-GELU is one), relu, tanh, sigmoid, log(1 + relu)"
"""The functions, for messages."""


def name_function(samples: NDArray[np.float64]) -> tuple[str, dict[str, Any]] | None:
    """Return operator and attributes of the canonical function with these values on `GRID`.

    Parameters
    ----------
    samples : numpy.ndarray
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
    return None if beta is None else ("silu", {"beta": beta})


def before_norm(
    fits: Callable[[NDArray[np.float64]], _Fit | None],
) -> tuple[str, dict[str, Any], _Fit] | None:
    """Find the known function whose values a norm was taken of.

    Parameters
    ----------
    fits : callable
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


def _same(samples: NDArray[np.float64], curve: NDArray[np.float64]) -> bool:
    return bool(np.all(np.abs(samples - curve) <= _TOLERANCE * (1.0 + np.abs(GRID))))


def _silu_beta(samples: NDArray[np.float64]) -> float | None:
    """Beta of ``x sigmoid(beta x)``, which is sigmoid(beta) at 1; None if it is another function.

    Six digits: constants are rounded to float32.
    """
    gate = float(samples[_ONE])
    if not 0.5 < gate < 1.0:
        return None
    beta = float(f"{np.log(gate / (1.0 - gate)):.6g}")
    if not _BETAS[0] <= beta <= _BETAS[1]:
        return None
    return beta if _same(samples, GRID * UNARY["relax.sigmoid"](beta * GRID)) else None


def slope(samples: NDArray[np.float64]) -> float | None:
    """Return c if the function is x -> c x, else None."""
    constant = float(samples[-1] / GRID[-1])
    scale = max(abs(constant), 1e-30)
    if np.all(np.abs(samples - constant * GRID) <= 1e-9 * scale * (1.0 + np.abs(GRID))):
        return constant
    return None
