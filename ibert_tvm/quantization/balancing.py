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
_POWER = 2**_SQUARINGS
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
    some = np.abs(matrix[:: max(matrix.shape[0] // _ROWS, 1)])
    of_range, of_rows = _Norms(half_range[None]), _Norms(some)
    share = matrix.shape[0] / some.shape[0]
    energy = np.einsum("nc,nc->c", matrix, matrix, dtype=np.float64)
    logs = np.log(start / start.max())
    momentum, square = np.zeros_like(logs), np.zeros_like(logs)
    best, smallest = np.exp(logs), np.inf
    for count in range(1, _STEPS + 1):
        divisor = np.exp(logs)
        step, by_channel = of_range.squares(1 / divisor)
        of_channels = energy * divisor**2
        activation = of_channels.sum() * step
        slope = 2 * step * of_channels - 2 * of_channels.sum() * by_channel
        rows, by_weight = of_rows.squares(divisor)
        variances = variance / divisor**2
        weights = weight * share * rows * variances.sum()
        slope += 2 * weight * share * by_weight * variances.sum()
        slope -= 2 * weight * share * rows * variances
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


class _Norms:
    """Norms of a high power of rows whose columns are multiplied by changing factors.

    Powers of the entries are taken once. The largest of a row is 1, and a number of double
    precision has room for those that matter.

    Parameters
    ----------
    sizes
        [N, C], not negative.
    """

    def __init__(self, sizes: NDArray[np.floating]) -> None:
        self._largest = np.maximum(sizes.max(axis=1).astype(np.float64), _SMALLEST)
        self._powers = sizes / self._largest[:, None]
        for _ in range(_SQUARINGS):
            self._powers *= self._powers

    def squares(self, factors: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        """Sum of the rows' squared norms; and half of its slope by the factors' logarithms, [C]."""
        most = factors.max()
        raised = (factors / most) ** _POWER
        total = self._powers @ raised
        total = np.where(total > 0, total, 1)  # of a row of nothing
        squares = (self._largest * most) ** 2 * total ** (2 / _POWER)
        return float(squares.sum()), (squares / total) @ self._powers * raised
