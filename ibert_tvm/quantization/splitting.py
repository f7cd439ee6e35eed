"""Split channels with outliers into several columns (outlier channel splitting, Zhao et al. 2019).

A few channels of what a feed-forward layer computes are a hundred times larger than the others, at
a few tokens, and one 8-bit scale serves all. Smoothing moves their size into the weights, which
then lose precision instead. A channel of several columns has a range that is as many times larger
at the same scale, without loss, and costs as many columns of the next product: one in fifty is
enough to do without smoothing where it matters.
"""

from __future__ import annotations

import heapq

import numpy as np
from numpy.typing import NDArray

from ibert_tvm.relay_passes.quantization_table import MOST_COLUMNS

# Columns come in whole vectors.
_COLUMNS = 16


def extra_columns(channels: int, share: float) -> int:
    """Number of columns that may be added to so many channels."""
    return int(channels * share) // _COLUMNS * _COLUMNS


def split_channels(magnitude: NDArray[np.float64], columns: int) -> NDArray[np.int64] | None:
    """Say how many columns each channel gets, so that the largest part becomes smallest.

    Parameters
    ----------
    magnitude
        Largest absolute value per channel [C].
    columns
        Columns to be added; all of them are.

    Returns
    -------
    numpy.ndarray or None
        int64 [C], 1 to `MOST_COLUMNS`; None for no columns.
    """
    if columns == 0:
        return None
    splits = np.ones(magnitude.size, np.int64)
    parts = [(-float(size), channel) for channel, size in enumerate(magnitude)]
    heapq.heapify(parts)
    for _ in range(columns):
        _, channel = parts[0]
        splits[channel] += 1
        size = float(magnitude[channel]) / splits[channel]
        if splits[channel] == MOST_COLUMNS:
            size = 0.0
        heapq.heapreplace(parts, (-size, channel))
    return splits
