"""A scale per row in integers: against exact rounding, over all 16-bit entries."""

from __future__ import annotations

import numpy as np
import pytest

from ibert_tvm.relay_passes.spec import row_scale
from ibert_tvm.relay_passes.spec.values import Ranged, ranged
from tests.examples import examples

MAGNITUDES = [1, 2, 3, 126, 127, 128, 255, 4095, 4096, 16383, 16384, 32766, 32767]


def quantised(x: np.ndarray, m: np.ndarray) -> np.ndarray:
    shift = row_scale.normalising_shift(m)
    factor = row_scale.reciprocal(m, shift)
    return row_scale.quantise(x, m, shift, factor, 0, -127, 127)


def test_every_magnitude_has_a_reciprocal_of_15_bits() -> None:
    m = np.arange(1, row_scale.LIMIT + 1)
    shift = row_scale.normalising_shift(m)
    assert (m << shift).min() == 1 << 14 and (m << shift).max() == row_scale.LIMIT
    factor = row_scale.reciprocal(m, shift)
    np.testing.assert_array_equal(factor, (127 << 22) // (m << shift))
    assert (factor.min(), factor.max()) == (16256, 32512)
    np.testing.assert_array_equal(quantised(m, m), 127)
    np.testing.assert_array_equal(quantised(-m, m), -127)


@pytest.mark.parametrize("m", examples(MAGNITUDES, 4095, 32767))
def test_entries_are_rounded_to_the_nearest(m: int) -> None:
    x = np.arange(-(2**15), 2**15)
    exact = np.clip(x, -m, m) * 127 / m
    found = quantised(x, np.int64(m))
    assert np.abs(found - exact).max() <= 0.5 + 1 / 80
    assert (found != np.floor(exact + 0.5)).mean() < 0.02


def test_all_rows_of_one_length_are_rounded_alike() -> None:
    """Every magnitude, with entries at fixed parts of it."""
    m = np.arange(1, row_scale.LIMIT + 1)
    for part in (-1.0, -0.7, -0.001, 0.0, 0.3, 0.999):
        x = np.floor(m * part).astype(np.int64)
        assert np.abs(quantised(x, m) - x * 127 / m).max() <= 0.5 + 1 / 80


@pytest.mark.parametrize("shift", [0, 1, 7, 16])
def test_sums_are_restored_exactly(shift: int) -> None:
    random = np.random.default_rng(shift)
    x = random.integers(-(2**15) << shift, 2**15 << shift, 4096)
    m = random.integers(1, 2**15, 4096)
    x[:2], m[:2] = (-(2**15) << shift, (2**15 << shift) - 1), row_scale.LIMIT
    expected = ((x * m) >> shift) + 9
    np.testing.assert_array_equal(row_scale.restored(x, m, shift, 9), expected)
    bound = Ranged(-(2**15) << shift, (2**15 << shift) - 1)
    proven = row_scale.restored(bound, Ranged(1, row_scale.LIMIT), shift, ranged(9))
    assert proven.dtype == "int32"
    assert proven.low <= expected.min() and expected.max() <= proven.high
