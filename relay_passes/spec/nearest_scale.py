"""Constants of an approximation at the scale nearest to a given one that it serves."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ..errors import RangeError

_Constants = TypeVar("_Constants")
_FARTHEST = 128
_FINE = 2.0**-100


def at_nearest_scale(
    derive: Callable[[float], _Constants], scale: float
) -> tuple[_Constants, float]:
    """Derive constants at a scale, or at the nearest that is a power of two away from it.

    Which scales an approximation serves, its constants say themselves, by a `RangeError`.

    Parameters
    ----------
    derive
        Constants at a scale.
    scale
        The scale.

    Returns
    -------
    constants
        What `derive` returned.
    float
        At which scale; `scale` where that is served.

    Raises
    ------
    RangeError
        That of `scale`, if no other serves either, or it is no positive finite number.
    """
    try:
        return derive(scale), scale
    except RangeError:
        if math.isfinite(scale) and scale > 0:
            for exponent in range(1, _FARTHEST + 1):
                for candidate in (math.ldexp(scale, exponent), math.ldexp(scale, -exponent)):
                    with contextlib.suppress(RangeError):
                        return derive(candidate), candidate
        raise


def finest_scale(derive: Callable[[float], object]) -> float:
    """Return the smallest power of two that serves as scale; see `at_nearest_scale`."""
    return at_nearest_scale(derive, _FINE)[1]


def largest_error(
    function: Callable[[NDArray[np.float64]], NDArray[np.float64]],
    scale: float,
    nearest: float,
    largest: int,
    in_steps: bool = False,
) -> float:
    """Return how far a function errs whose constants are those of another scale.

    Parameters
    ----------
    function
        Of real numbers.
    scale, nearest
        What an integer stands for, and what the constants take it for.
    largest
        Absolute integer.
    in_steps
        Whether the result is in steps of its operand, which stay those of `scale`.
    """
    sizes = np.unique(np.rint(np.geomspace(1, max(largest, 2), 1024)))
    integers = np.concatenate([-sizes, sizes])
    factor = scale / nearest if in_steps else 1.0
    wrong = function(nearest * integers) * factor - function(scale * integers)
    return float(np.abs(wrong).max())
