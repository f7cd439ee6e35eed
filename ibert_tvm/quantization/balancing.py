"""Divisors of channels that balance the rounding of an activation and of the weights behind it.

Smoothing's family of divisors, powers of the channels' sizes, has one number to choose
(`ibert_tvm.quantization.smoothing`). What is to become small is known, though: with d the divisors,
the step of the activation is ``S = max_c h_c / d_c``, of half ranges h, and its rounding adds ``S^2
sum_c d_c^2 |w_c|^2`` to the squared error of the products; the step of a row of the weights is
``R_n = max_c |w_nc| d_c``, and its rounding adds ``sum_n R_n^2 sum_c v_c / d_c^2``, of channels
with the variance v. Both fall along the gradient in log d; the maxima are taken as norms of a high
power, which have one. How much of the second is left where the rounding of a weight makes up for
others is not known beforehand, so it has a weight, of which the caller tries some.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_STEPS = 64
_RATE = 0.05
# Rows that say how large those of the weights are.
_ROWS = 384
# A maximum is the norm of this power, a power of two.
_SQUARINGS = 4
_POWER = 2.0**_SQUARINGS
_DECAY, _SQUARE_DECAY = 0.9, 0.99
_SMALLEST = 1e-12


def balanced_divisor(
    half_range: NDArray[np.float64],
    matrix: NDArray[np.float32],
    variance: NDArray[np.float64],
    weight: float,
    start: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Improve divisors by gradient descent (Adam, Kingma and Ba 2015).

    Parameters
    ----------
    half_range
        Of each channel, or of the part of it that one column serves, [C].
    matrix
        [N, C], of all layers that read the activation.
    variance
        Of each channel, [C].
    weight
        Of the rounding of weights.
    start
        Divisors to begin with, [C], positive.

    Returns
    -------
    numpy.ndarray
        float64 [C], the best that were met; the largest is 1.
    """
    size = np.abs(matrix[:: max(matrix.shape[0] // _ROWS, 1)])
    share = matrix.shape[0] / size.shape[0]
    energy = np.einsum("nc,nc->c", matrix, matrix, dtype=np.float64)
    logs = np.log(start / start.max())
    momentum, square = np.zeros_like(logs), np.zeros_like(logs)
    best, smallest = np.exp(logs), np.inf
    for count in range(1, _STEPS + 1):
        divisor = np.exp(logs)
        step, by_channel = _soft_maximum((half_range / divisor)[None])
        of_channels = energy * divisor**2
        activation = of_channels.sum() * step[0] ** 2
        slope = 2 * step[0] ** 2 * of_channels - 2 * activation * by_channel[0]
        rows, by_weight = _soft_maximum(size * divisor.astype(np.float32))
        rows, variances = rows**2, variance / divisor**2
        weights = weight * share * rows.sum() * variances.sum()
        slope += 2 * weight * share * (rows @ by_weight) * variances.sum()
        slope -= 2 * weight * share * rows.sum() * variances
        error = activation + weights
        if error < smallest:
            best, smallest = divisor, error
        slope = slope / max(error, _SMALLEST)
        momentum = _DECAY * momentum + (1 - _DECAY) * slope
        square = _SQUARE_DECAY * square + (1 - _SQUARE_DECAY) * slope**2
        size_of_slope = np.sqrt(square / (1 - _SQUARE_DECAY**count)) + _SMALLEST
        rate = _RATE * (1 - count / (_STEPS + 1))
        logs = logs - rate * momentum / (1 - _DECAY**count) / size_of_slope
    return np.asarray(best / best.max())


def _soft_maximum(sizes: NDArray[np.floating]) -> tuple[NDArray[np.float64], NDArray[np.floating]]:
    """Largest entry of each row [N, C], smooth; and the slope of its logarithm by those of C."""
    largest = np.maximum(sizes.max(axis=1, keepdims=True), _SMALLEST)
    powers = sizes / largest
    for _ in range(_SQUARINGS):
        powers *= powers
    total = powers.sum(axis=1, keepdims=True)
    # A row of nothing has no largest entry.
    total = np.where(total > 0, total, 1)
    smooth = largest * total ** (1 / _POWER)
    return smooth[:, 0].astype(np.float64), powers / total
