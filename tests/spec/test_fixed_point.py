"""Dyadic numbers and requantisation, against Python's unbounded integers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ibert_tvm.relay_passes.errors import RangeError
from ibert_tvm.relay_passes.spec.fixed_point import (
    Dyadic,
    dyadic_vector,
    requantise,
    requantise_clamped,
)
from ibert_tvm.relay_passes.spec.values import Ranged
from tests.snapshots import Messages

INT32 = st.integers(-(2**31), 2**31 - 1)


@given(INT32, INT32, st.integers(0, 62))
def test_requantise_equals_unbounded_arithmetic(q: int, m: int, shift: int) -> None:
    got = requantise(np.array([q], np.int64), np.array([m], np.int64), shift)
    assert int(got[0]) == (2 * q * m + (1 << shift)) >> (shift + 1)


@given(INT32, INT32, st.integers(1, 62))
def test_requantise_rounds_half_up(q: int, m: int, shift: int) -> None:
    got = int(requantise(np.array([q], np.int64), m, shift)[0])
    assert -(1 << shift) < 2 * (q * m - (got << shift)) + 1 <= (1 << shift)


@given(st.floats(1e-12, 1e6), st.integers(8, 31), st.booleans())
def test_a_dyadic_number_is_as_close_as_its_bits_allow(real: float, bits: int, sign: bool) -> None:
    real = -real if sign else real
    try:
        dyadic = Dyadic.from_real(real, bits)
    except RangeError as error:
        assert abs(real) >= 2.0 ** (bits - 1) and "too large" in str(error)
        return
    assert 0 <= dyadic.shift <= 62
    assert abs(dyadic.multiplier) < 2**bits
    error = max(abs(real) * 2.0**-bits, 2.0**-63)  # the second: shifts end at 62
    assert abs(dyadic.value - real) <= error * 1.0000001


def test_a_mantissa_that_rounds_up_to_a_power_of_two_stays_within_its_bits() -> None:
    dyadic = Dyadic.from_real(1.0 - 2.0**-40, 31)
    assert (dyadic.multiplier, dyadic.shift) == (2**30, 30)


def test_channels_share_one_shift() -> None:
    vector = dyadic_vector(np.array([0.5, -0.001, 0.0, 0.25]), 15)
    assert vector.multipliers.dtype == np.int32
    assert vector.multipliers.tolist() == [16384, -33, 0, 8192]
    assert vector.shift == 15
    np.testing.assert_allclose(vector.values, [0.5, -0.001, 0.0, 0.25], atol=2.0**-16)


def test_all_zero_factors_are_allowed() -> None:
    vector = dyadic_vector(np.zeros(3))
    assert vector.multipliers.tolist() == [0, 0, 0] and vector.shift == 0


def test_a_channel_that_loses_all_bits_is_refused(messages: Messages) -> None:
    with messages.raises(RangeError):
        dyadic_vector(np.array([1.0, 1e-6]), 15)


def test_a_factor_that_is_not_finite_is_refused(messages: Messages) -> None:
    with messages.raises(RangeError):
        dyadic_vector(np.array([1.0, np.inf]))


def test_a_factor_too_large_is_refused(messages: Messages) -> None:
    with messages.raises(RangeError):
        Dyadic.from_real(40000.0, 15)


def test_bits_beyond_int32_are_refused(messages: Messages) -> None:
    with messages.raises(RangeError):
        Dyadic.from_real(1.0, 32)


@pytest.mark.representatives(2)
@pytest.mark.parametrize(
    ("multiplier", "shift"), [(2**31 - 1, 62), (-(2**31), 31), (12345, 20), (-7, 0), (1, 0)]
)
def test_requantise_agrees_in_both_domains(both_domains, multiplier: int, shift: int) -> None:
    random = np.random.default_rng(shift)
    q = random.integers(-(2**31), 2**31, 4096)
    q[:6] = [-(2**31), 2**31 - 1, 0, -1, 1, 2**30]

    def function(v):
        return requantise_clamped(v, multiplier, shift, 3, -(2**30), 2**30)

    both_domains(function, (q, -(2**31), 2**31 - 1))


def test_a_short_mantissa_on_a_16_bit_value_needs_only_int32() -> None:
    value = Ranged(-32767, 32767)
    assert (value * (2**15 - 1)).dtype == "int32"
    assert requantise(value, 2**15 - 1, 20).dtype == "int32"
    assert (value * (2**17)).dtype == "int64"
