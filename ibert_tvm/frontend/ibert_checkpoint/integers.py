"""Integer weights, derived again from the float weights as the released code derives them.

In float32, with ``round((1 / S) w)`` to the nearest, halves to even, clamped to -127..126: the
asymmetric end is the released code's.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ibert_tvm.relay_passes.quantization_table import WeightQuant

_TOP = 127
_SMALLEST = np.float32(1e-8)


def _integers(weight: NDArray[np.float32], scale: NDArray[np.float32]) -> NDArray[np.int8]:
    steps = np.rint((np.float32(1.0) / scale)[:, None] * weight)
    return np.clip(steps, -_TOP, _TOP - 1).astype(np.int8)


def linear_integers(weight: NDArray[np.float32]) -> WeightQuant:
    """Int8 rows of a linear layer, a scale per row.

    Parameters
    ----------
    weight
        float32 [N, K].

    Returns
    -------
    WeightQuant
        Its scales are float32 numbers.
    """
    largest = np.maximum(np.abs(weight).max(axis=1), _SMALLEST)
    scale = largest / np.float32(_TOP)
    return WeightQuant(_integers(weight, scale), scale.astype(np.float64))


def embedding_integers(table: NDArray[np.float32]) -> WeightQuant:
    """Int8 rows of an embedding, one scale for all.

    Parameters
    ----------
    table
        float32 [V, C].
    """
    largest = np.maximum(np.abs(table).max(), _SMALLEST)
    scale = np.full(table.shape[0], largest / np.float32(_TOP), np.float32)
    return WeightQuant(_integers(table, scale), scale.astype(np.float64))
