"""A scale per token for a matrix operand: its form, its integers, and where it is taken.

A token whose entries are small beside those of others keeps 8 bits of its own. What it costs is a
pass over the row that finds the largest entry, so it is taken where the products come clearly
closer to those of the float model.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ibert_tvm.relay_passes.quantization_table import ActivationQuant

from .observers import SMALLEST_RANGE, Statistics
from .options import ALWAYS, NEVER

# The squared error of the products must fall by this factor.
_GAIN = 1.5
# The 16-bit integers that rows are taken from: 14 bits, which 16-bit requantisation gives, and room
# for text that goes further than the calibration data.
_HIGH = 2**14 - 1
_HEADROOM = 1.5
_LARGEST = 127


def choices(row_scales: str, possible: bool) -> tuple[bool, ...]:
    """Whether to try static scales (False), scales per row (True), or both."""
    if not possible or row_scales == NEVER:
        return (False,)
    return (True,) if row_scales == ALWAYS else (False, True)


def pays(static: float, by_row: float) -> bool:
    """Whether a scale per row lowers the squared error of the products clearly."""
    return by_row * _GAIN < static


def form(statistics: Statistics, divisor: NDArray[np.float64] | None) -> ActivationQuant:
    """Form of a value that is brought to 8 bits row by row.

    Parameters
    ----------
    statistics
        Of the value.
    divisor
        Per channel [C]: the value is divided by it first (smoothing).
    """
    magnitude = statistics.channel_magnitude / (1.0 if divisor is None else divisor)
    scale = max(float(magnitude.max()) * _HEADROOM, SMALLEST_RANGE) / _HIGH
    return ActivationQuant(scale, -_HIGH, _HIGH, 0, divisor, by_row=True)


def effective_steps(steps: NDArray[np.float32]) -> NDArray[np.float32]:
    """What 8 bits per row leave of 16-bit integers [tokens, C], in the same units, float32."""
    magnitude = np.maximum(np.abs(steps).max(axis=1, keepdims=True), 1)
    return np.rint(steps * (_LARGEST / magnitude)) * (magnitude / _LARGEST)
