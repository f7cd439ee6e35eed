"""Weighted means and sums over roots: rounding, both domains, intervals."""

from __future__ import annotations

import numpy as np

from ibert_tvm.relay_passes.spec.pooling import (
    over_root,
    quotient_within,
    root_half_bits,
    root_of_count,
)
from ibert_tvm.relay_passes.spec.values import Ranged

BOUNDS = (-(2**14), 2**14)


def test_a_weighted_mean_is_rounded_to_nearest() -> None:
    random = np.random.default_rng(0)
    weights = random.integers(1, 512 * 513 // 2, 4096)
    total = random.integers(-(2**14), 2**14 + 1, 4096) * weights
    total += random.integers(-weights, weights + 1) // 2
    got = quotient_within(total, weights, 8, BOUNDS)
    assert np.abs(got - total * 256.0 / weights).max() <= 0.5 + 1e-6
    assert quotient_within(np.array([0]), np.array([0]), 8, BOUNDS)[0] == 0


def test_it_is_odd_and_keeps_the_interval_of_its_entries() -> None:
    total, weights = np.arange(-50, 51), np.full(101, 7)
    got = quotient_within(total, weights, 0, BOUNDS)
    np.testing.assert_array_equal(got, -got[::-1])
    found = quotient_within(Ranged(-(2**32), 2**32), Ranged(0, 2**18), 8, BOUNDS)
    assert (found.low, found.high) == (-(2**22), 2**22)


def test_both_domains_agree(both_domains) -> None:
    random = np.random.default_rng(1)
    weights = random.integers(0, 2**17, 512)
    total = random.integers(-(2**14), 2**14 + 1, 512) * weights
    both_domains(
        lambda t, w: quotient_within(t, w, 8, BOUNDS),
        (total, -(2**32), 2**32),
        (weights, 0, 2**17),
        vectorise=False,
    )


def test_a_sum_over_the_root_of_its_number() -> None:
    count = np.arange(0, 4097)
    root = root_of_count(count, root_half_bits(count))
    np.testing.assert_allclose(root / 2**14, np.sqrt(np.maximum(count, 1)), rtol=2.0**-14)
    total = count * 777
    got = over_root(total, root, 5) / 2**5
    np.testing.assert_allclose(got, 777 * np.sqrt(count), rtol=2.0**-13, atol=2.0**-6)
