"""Released i-layer-norm: 2^31 / sigma, floors, and a bias of ``beta / gamma``.

Over the C channels of a token, in stages:

1. ``mean = mean_of(sum of x, C)``, ``d = x - mean``;
2. ``V = sum of square(d, constants)``: squares of d shifted right as training found necessary;
3. ``f = factor(V, half, constants)``: one exact root and one division per token;
4. ``out = normalise(d, f, offset)``: int32 and a bit, at the scale ``gamma sqrt(C) / 2^30``.

Epsilon plays no part, as released. A row whose root is 0 divides by zero there; here the root
counts as 1, and the row gives beta.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ...errors import RangeError
from ..square_root import half_bits, i_sqrt
from ..values import Value, bind, floor_divide, known, maximum
from .rounding import mean_even

FACTOR_BITS = 31
_ROOT_BITS = 62
NORMALISED_LIMIT = 2**31
"""Bound of ``d f / 2``: |d| is at most twice the root, and f the quotient of 2^31 by it."""


@dataclass(frozen=True)
class ReleasedLayerNorm:
    """Scalar constants.

    Parameters
    ----------
    shift
        Right shift of a deviation before it is squared, 0..31; the checkpoint holds it.
    """

    shift: int

    def __post_init__(self) -> None:
        if not 0 <= self.shift <= 31:
            raise RangeError(
                f"the shift of a layer norm is {self.shift}",
                why="it brings deviations of 23 bits to 16",
                todo="check the checkpoint: training sets it to 0..8",
            )


def offset_and_scale(gamma: np.ndarray, beta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Offset of the normalised value, and its scale per channel.

    Parameters
    ----------
    gamma, beta
        Float [C].

    Returns
    -------
    offset : numpy.ndarray
        int64 [C], ``floor(beta / gamma / (sqrt(C) / 2^30))``.
    scale : numpy.ndarray
        float64 [C], ``gamma sqrt(C) / 2^30``: negative where gamma is.

    Raises
    ------
    RangeError
        If a gamma is 0, or an entry is not finite or too large.
    """
    gamma, beta = np.asarray(gamma, np.float64), np.asarray(beta, np.float64)
    zero = np.flatnonzero(gamma == 0)
    if zero.size:
        raise RangeError(
            f"gamma of channel {int(zero[0])} is 0, and {zero.size - 1} more",
            why="the released layer norm divides beta by gamma",
            todo="quantise the float weights with calibration: the other presets take any gamma",
        )
    unit = math.sqrt(gamma.size) / 2.0**30
    with np.errstate(over="ignore", invalid="ignore"):
        steps = np.floor(beta / gamma / unit)
    if not (np.isfinite(steps).all() and np.abs(steps).max() < 2.0**60):
        worst = int(np.argmax(np.where(np.isfinite(steps), np.abs(steps), np.inf)))
        raise RangeError(
            f"beta / gamma of channel {worst} is {beta[worst] / gamma[worst]:.3g}",
            why="its integer does not fit 60 bits",
            todo="check the checkpoint, or quantise the float weights with calibration",
        )
    return steps.astype(np.int64), gamma * unit


def mean_of(total: Value, channels: int) -> Value:
    """Mean of a token, halves to even; see `rounding.mean_even`."""
    return mean_even(total, channels)


def square(d: Value, constants: ReleasedLayerNorm) -> Value:
    """``(d >> shift)^2``, to be summed over the channels.

    Parameters
    ----------
    d
        ``x - mean``.
    constants

    Returns
    -------
    Value
        int64.
    """
    shifted = bind(d >> constants.shift if constants.shift else d)
    return shifted * shifted


def root_half_bits(total: Value) -> Value:
    """Half the bits of the sum of squares, where the root starts: its own stage.

    Parameters
    ----------
    total
        V, below 2^62.
    """
    return half_bits(total, _ROOT_BITS)


def factor(total: Value, half: Value, constants: ReleasedLayerNorm) -> Value:
    """``floor(2^31 / s)`` with ``s = max(floor(sqrt(V)), 1) 2^shift``: once per token.

    Parameters
    ----------
    total, half
        V and `root_half_bits` of it.
    constants

    Returns
    -------
    Value
        In [0, 2^31].
    """
    root = maximum(i_sqrt(total, _ROOT_BITS, half), 1)
    return floor_divide(1 << FACTOR_BITS, root << constants.shift if constants.shift else root)


def normalise(d: Value, factor_of_row: Value, offset: Value) -> Value:
    """``floor(d f / 2) + offset``.

    Parameters
    ----------
    d
        Deviation.
    factor_of_row
        `factor` of the token.
    offset
        Of `offset_and_scale`.

    Returns
    -------
    Value
        int64.
    """
    # |d| < 2 s with s the root after its shift, and f <= 2^31 / s: the interval cannot know it.
    scaled = known((d * factor_of_row) >> 1, -NORMALISED_LIMIT, NORMALISED_LIMIT)
    return scaled + offset
