"""i-tanh and masked mean pooling."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ibert_tvm.relay_passes.spec.exponential import BinaryExponential
from ibert_tvm.relay_passes.spec.pooling import mean_of_tokens, reciprocal_of_count
from ibert_tvm.relay_passes.spec.tanh import i_tanh
from ibert_tvm.relay_passes.spec.values import Ranged

INT16 = np.arange(-32767, 32768)


@pytest.mark.parametrize("scale", [3e-5, 1e-4, 2.4e-4, 1e-3, 1e-2])
def test_tanh_is_close_odd_and_monotone(scale: float) -> None:
    constants = BinaryExponential.for_tanh(scale)
    got = i_tanh(INT16, constants, 15)
    resolution = scale * ((1 << constants.pre_shift) - 1)  # of the argument, at a slope of 1
    assert np.abs(got / 2**15 - np.tanh(INT16 * scale)).max() < 1.2e-4 + resolution
    np.testing.assert_array_equal(got, -got[::-1])
    assert np.abs(got).max() <= 32767 and got[INT16 == 0] == 0
    # The cubic's segments meet within 7e-5, so a step back is at most a few units.
    assert np.diff(got).min() >= -3


@pytest.mark.parametrize(("scale", "bits"), [(3e-5, 15), (1e-3, 15), (5e-3, 7)])
def test_tanh_agrees_in_both_domains_on_all_int16(both_domains, scale: float, bits: int) -> None:
    constants = BinaryExponential.for_tanh(scale)
    both_domains(lambda q: i_tanh(q, constants, bits), (INT16, -32767, 32767))


def test_tanh_takes_any_int32(both_domains) -> None:
    constants = BinaryExponential.for_tanh(1e-4)
    edge = 2**31 - 1
    q = np.array([-edge, -1, 0, 1, edge, edge - 1, 70000, -70000])
    got = both_domains(lambda v: i_tanh(v, constants, 15), (q, -edge, edge))
    assert got[0] == -32767 and got[4] == 32767


@given(st.lists(st.integers(-32767, 32767), min_size=1, max_size=40), st.integers(0, 8))
def test_mean_is_within_a_unit_of_the_last_place(tokens: list[int], fraction_bits: int) -> None:
    count = np.array([len(tokens)])
    got = mean_of_tokens(np.array([sum(tokens)]), reciprocal_of_count(count), fraction_bits)
    assert abs(got[0] - np.mean(tokens) * 2**fraction_bits) <= 1.0


def test_an_empty_sequence_gives_zero() -> None:
    zero = np.zeros(1, np.int64)
    assert mean_of_tokens(zero, reciprocal_of_count(zero), 8)[0] == 0


def test_a_constant_sequence_gives_its_value() -> None:
    count = np.arange(1, 513)
    got = mean_of_tokens(12345 * count, reciprocal_of_count(count), 0)
    np.testing.assert_array_equal(got, 12345)


def test_pooling_agrees_in_both_domains(both_domains) -> None:
    random = np.random.default_rng(0)
    count = random.integers(0, 513, 1024)
    total = random.integers(-32767, 32768, 1024) * count
    reciprocal = both_domains(reciprocal_of_count, (count, 0, 512), vectorise=False)
    both_domains(
        lambda t, r: mean_of_tokens(t, r, 6, Ranged(-32767, 32767)),
        (total, -32767 * 512, 32767 * 512),
        (reciprocal, 0, 2**30 + 512),
    )


def test_interval_of_a_mean_is_that_of_its_entries() -> None:
    total = Ranged(-32767 * 512, 32767 * 512)
    reciprocal = reciprocal_of_count(Ranged(0, 512))
    entry = Ranged(-32767, 32767)
    mean = mean_of_tokens(total, reciprocal, 8, entry)
    assert mean.high < 32767 * 256 + 10 and mean.low > -32767 * 256 - 10
    assert mean_of_tokens(total, reciprocal, 8).high > 2**31
