"""Divisors that balance the rounding of an activation and of weights."""

from __future__ import annotations

import numpy as np
import pytest

from ibert_tvm.quantization.balancing import balanced_divisor
from ibert_tvm.quantization.observers import Statistics
from ibert_tvm.quantization.options import CalibrationOptions
from ibert_tvm.quantization.smoothing import channel_divisor, quantize_operand

CHANNELS, ROWS = 32, 24


def problem() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of an activation, a matrix, half ranges: sizes of channels differ, of both."""
    random = np.random.default_rng(2)
    rows = random.normal(size=(600, CHANNELS)) * np.exp(random.normal(size=CHANNELS))
    matrix = random.normal(size=(ROWS, CHANNELS)) * np.exp(0.5 * random.normal(size=CHANNELS))
    rows, matrix = rows.astype(np.float32), matrix.astype(np.float32)
    return rows, matrix, np.abs(rows).max(axis=0).astype(np.float64)


def predicted(
    divisor: np.ndarray, half: np.ndarray, matrix: np.ndarray, variance: np.ndarray, weight: float
) -> float:
    """What the module says is to become small, of true maxima."""
    activation = (half / divisor).max() ** 2 * (divisor**2 * (matrix**2).sum(axis=0)).sum()
    rows = (np.abs(matrix) * divisor).max(axis=1) ** 2
    return float(activation + weight * rows.sum() * (variance / divisor**2).sum())


@pytest.mark.parametrize("weight", [0.3, 1.0, 3.0])
def test_the_error_becomes_smaller_than_that_of_any_strength(weight: float) -> None:
    rows, matrix, half = problem()
    variance, largest = rows.var(axis=0), np.abs(matrix).max(axis=0)
    starts = [channel_divisor(half, largest, alpha) for alpha in (0.0001, 0.25, 0.5, 0.75, 0.9999)]
    best = min(starts, key=lambda d: predicted(d, half, matrix, variance, weight))
    found = balanced_divisor(half, matrix, variance, weight, best)
    assert found.max() == 1
    error = predicted(found, half, matrix, variance, weight)
    assert error < 0.97 * predicted(best, half, matrix, variance, weight)


def test_channels_and_weights_of_nothing_have_a_divisor() -> None:
    rows, matrix, half = problem()
    rows[:, 3], half[3], matrix[:, 5], matrix[2] = 0, 0, 0, 0
    found = balanced_divisor(half, matrix, rows.var(axis=0), 0.3, np.ones(CHANNELS))
    assert np.isfinite(found).all()
    assert (found > 0).all()


def test_layers_come_closer() -> None:
    rows, matrix, _ = problem()
    errors = []
    for balance in ((), (0.3, 1.0)):
        seen = Statistics()
        seen.update(rows, rows)
        options = CalibrationOptions(observer="minmax", balance=balance)
        errors.append(quantize_operand(seen, {"layer": matrix}, options).error)
    assert errors[1] < 0.97 * errors[0]
