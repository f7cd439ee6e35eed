"""How float weights become integers of known scales: to the nearest, clamped.

Calibration, training and the reading of what was trained round by these functions and no others, so
that the same weights and scales give the same integers. This module imports nothing of the project.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

LEVELS = 127
FINE_LEVELS = 2**13 - 1


def nearest(weight: NDArray[np.float32], scale: NDArray[np.float64]) -> NDArray[np.int8]:
    """Round every weight to its nearest integer; int8 [N, K] in -127..127."""
    steps = np.rint(weight / scale[:, None].astype(np.float32))
    return np.clip(steps, -LEVELS, LEVELS).astype(np.int8)


def nearest_fine(table: NDArray[np.float32], scale: NDArray[np.float64]) -> NDArray[np.int16]:
    """Round rows of a table to 14 bits; int16 [V, C]."""
    return np.clip(np.rint(table / scale[:, None]), -FINE_LEVELS, FINE_LEVELS).astype(np.int16)
