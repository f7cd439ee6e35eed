"""Recognition of LayerNorm and RMSNorm, in whatever operators they are written, by values.

Exporters without the operator write it as ReduceMean, Sub, Pow, ReduceMean, Add, Sqrt, Div, Mul and
Add; others square by a product, take a reciprocal, fold gamma into it, or use E[x²] - E[x]². As
with activation functions (`functions`), the operators are evaluated, here on example rows, and what
they compute is compared with gamma (x - mean) / sqrt(variance + epsilon) + beta, and with
gamma x / sqrt(mean of x² + epsilon). The rows take their values from the grid of `functions`, so
that a scalar function is a function of rows as well. The first row is 0, which gives beta; one has
a variance near usual epsilons, which gives epsilon.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from .functions import GRID

# Constants in float32, a mean by a rounded 1/C: errors up to a few 1e-6 of the result.
_TOLERANCE = 2e-5
_ZERO, _TINY, _LARGE = 0, 1, 3
# Of the squared length of a row; that of the shortest example is 5e-5.
_NO_EPSILON = 1e-10


@dataclass(frozen=True)
class Norm:
    """Parameters of a LayerNorm or of an RMSNorm.

    Parameters
    ----------
    gamma
        [channels] float64; [heads, channels] where rows are heads with weights of their own.
    beta
        As gamma; None for an RMSNorm.
    epsilon
        Added to the variance, or to the mean square.
    """

    gamma: NDArray[np.float64]
    beta: NDArray[np.float64] | None
    epsilon: float

    def by_head(self) -> Norm:
        """Return it with weights of heads in two dimensions, [heads or 1, channels]."""
        width = self.gamma.shape[-1]
        beta = None if self.beta is None else self.beta.reshape(-1, width)
        return replace(self, gamma=self.gamma.reshape(-1, width), beta=beta)

    @property
    def kind(self) -> str:
        """Its canonical operator."""
        return "rms_norm" if self.beta is None else "layer_norm"

    @property
    def is_unit(self) -> bool:
        """Whether it scales rows to length 1: ``x / |x|``, with an epsilon that counts for none."""
        channels = self.gamma.size
        plain = self.beta is None and bool(
            np.allclose(self.gamma, 1 / np.sqrt(channels), rtol=_TOLERANCE, atol=0)
        )
        return plain and self.epsilon * channels <= _NO_EPSILON


def row_places(channels: int) -> NDArray[np.int64]:
    """Return the indices in `GRID` of the example rows, [rows, channels]."""
    random = np.random.default_rng(0)
    centre = len(GRID) // 2
    rows = [np.full(channels, centre)]
    for reach in (1, 60, centre, centre, centre):
        rows.append(centre + random.integers(-reach, reach + 1, channels))
    rows.append(2 * centre - rows[-1])  # so that every channel is once above 0, as ReLU needs
    rows[_TINY][:2] = centre - 1, centre + 1  # never all the same
    return np.stack(rows)


def row_values(channels: int, curve: NDArray[np.float64] = GRID) -> NDArray[np.float64]:
    """Return the example rows [rows, channels], or a function of them by its values on the grid."""
    return curve[row_places(channels)]


def fit_norm(
    samples: NDArray[np.float64], channels: int, curve: NDArray[np.float64] = GRID
) -> Norm | None:
    """Return the norm that maps the example rows to `samples`, or None if there is none.

    Parameters
    ----------
    samples
        [rows, channels] float64; [heads, rows, channels] for rows that are heads.
    channels
        Number of channels of a row, at least 2.
    curve
        Values on the grid of a function that is applied to the rows before.

    Returns
    -------
    Norm or None
        Its parameters.
    """
    if samples.ndim == 3:
        each = [fit_norm(head, channels, curve) for head in samples]
        first = each[0]
        if first is None or any(
            one is None or (one.kind, one.epsilon) != (first.kind, first.epsilon) for one in each
        ):
            return None
        gammas, betas = zip(*((one.gamma, one.beta) for one in each if one), strict=True)
        return Norm(
            np.stack(gammas), None if first.beta is None else np.stack(betas), first.epsilon
        )
    x = row_values(channels, curve)
    if samples.shape != x.shape or not np.all(np.isfinite(samples)):
        return None
    beta = samples[_ZERO]
    about_mean = _fit(x - x.mean(axis=1, keepdims=True), samples, beta)
    if about_mean is not None or np.any(beta != 0.0):
        return about_mean
    about_zero = _fit(x, samples, beta)
    return None if about_zero is None else replace(about_zero, beta=None)


def _fit(
    x: NDArray[np.float64], samples: NDArray[np.float64], beta: NDArray[np.float64]
) -> Norm | None:
    """Fit ``gamma x / sqrt(mean x^2 + epsilon) + beta``."""
    squares = np.mean(x**2, axis=1)
    with np.errstate(all="ignore"):
        slopes = (samples - beta) / x
    usable = (np.abs(x[_LARGE]) > 1e-3) & (np.abs(x[_TINY]) > 1e-4)
    strength = np.where(usable, np.abs(slopes[_LARGE]), 0.0)
    best = int(np.argmax(strength))
    if strength[best] == 0.0:
        return None
    # slope = gamma / sqrt(squares + epsilon) in both rows: two equations for gamma and epsilon.
    with np.errstate(all="ignore"):
        # Of a function of the rows, slopes and channels may be 0.
        ratio = (slopes[_LARGE, best] / slopes[_TINY, best]) ** 2
    if not 0.0 < ratio < 1.0:
        return None
    epsilon = (ratio * squares[_LARGE] - squares[_TINY]) / (1.0 - ratio)
    if epsilon < -1e-9 * squares[_TINY]:
        return None
    epsilon = float(f"{max(epsilon, 0.0):.5g}")
    with np.errstate(all="ignore"):
        normalised = x / np.sqrt(squares + epsilon)[:, None]
    normalised[_ZERO] = 0.0
    weights = np.abs(normalised[_LARGE:])
    rows = _LARGE + np.argmax(weights, axis=0)
    columns = np.arange(x.shape[1])
    with np.errstate(all="ignore"):
        gamma = (samples[rows, columns] - beta) / normalised[rows, columns]
        error = np.abs(samples - (gamma * normalised + beta))
    if not np.all(error <= _TOLERANCE * (1.0 + np.abs(samples))):
        return None
    return Norm(gamma, beta, epsilon)
