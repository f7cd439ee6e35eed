"""Recognition of LayerNorm, in whatever operators it is written, by its values.

Exporters without the operator write it as ReduceMean, Sub, Pow, ReduceMean, Add, Sqrt, Div, Mul and
Add; others square by a product, take a reciprocal, fold gamma into it, or use E[x²] - E[x]². As
with activation functions (`functions`), the operators are evaluated, here on example rows, and what
they compute is compared with gamma (x - mean) / sqrt(variance + epsilon) + beta. The rows take
their values from the grid of `functions`, so that a scalar function is a function of rows as well.
The first row is 0, which gives beta; one has a variance near usual epsilons, which gives epsilon.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .functions import GRID

# Constants in float32, a mean by a rounded 1/C: errors up to a few 1e-6 of the result.
_TOLERANCE = 2e-5
_ZERO, _TINY, _LARGE = 0, 1, 3


@dataclass(frozen=True)
class LayerNorm:
    """Parameters of a LayerNorm.

    Parameters
    ----------
    gamma, beta : numpy.ndarray
        [channels] float64.
    epsilon : float
        Added to the variance.
    """

    gamma: NDArray[np.float64]
    beta: NDArray[np.float64]
    epsilon: float


def row_places(channels: int) -> NDArray[np.int64]:
    """Return the indices in `GRID` of the example rows, [rows, channels]."""
    random = np.random.default_rng(0)
    centre = len(GRID) // 2
    rows = [np.full(channels, centre)]
    for reach in (1, 60, centre, centre, centre):
        rows.append(centre + random.integers(-reach, reach + 1, channels))
    rows[_TINY][:2] = centre - 1, centre + 1  # never all the same
    return np.stack(rows)


def row_values(channels: int) -> NDArray[np.float64]:
    """Return the example rows, [rows, channels]."""
    return GRID[row_places(channels)]


def fit_layer_norm(samples: NDArray[np.float64], channels: int) -> LayerNorm | None:
    """Return the LayerNorm that maps the example rows to `samples`, or None if there is none.

    Parameters
    ----------
    samples : numpy.ndarray
        [rows, channels] float64.
    channels : int
        Number of channels, at least 2.

    Returns
    -------
    LayerNorm or None
        Its parameters.
    """
    x = row_values(channels)
    if samples.shape != x.shape or not np.all(np.isfinite(samples)):
        return None
    centred = x - x.mean(axis=1, keepdims=True)
    variance = np.mean(centred**2, axis=1)
    beta = samples[_ZERO]
    with np.errstate(all="ignore"):
        slopes = (samples - beta) / centred
    usable = (np.abs(centred[_LARGE]) > 1e-3) & (np.abs(centred[_TINY]) > 1e-4)
    strength = np.where(usable, np.abs(slopes[_LARGE]), 0.0)
    best = int(np.argmax(strength))
    if strength[best] == 0.0:
        return None
    # slope = gamma / sqrt(variance + epsilon) in both rows: two equations for gamma and epsilon.
    ratio = (slopes[_LARGE, best] / slopes[_TINY, best]) ** 2
    if not 0.0 < ratio < 1.0:
        return None
    epsilon = (ratio * variance[_LARGE] - variance[_TINY]) / (1.0 - ratio)
    if epsilon < -1e-9 * variance[_TINY]:
        return None
    epsilon = float(f"{max(epsilon, 0.0):.5g}")
    with np.errstate(all="ignore"):
        normalised = centred / np.sqrt(variance + epsilon)[:, None]
    normalised[_ZERO] = 0.0
    weights = np.abs(normalised[_LARGE:])
    rows = _LARGE + np.argmax(weights, axis=0)
    columns = np.arange(channels)
    gamma = (samples[rows, columns] - beta) / normalised[rows, columns]
    error = np.abs(samples - (gamma * normalised + beta))
    if np.any(error > _TOLERANCE * (1.0 + np.abs(samples))):
        return None
    return LayerNorm(gamma, beta, epsilon)
