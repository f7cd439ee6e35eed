"""i-exp: accuracy of both forms, exactness of their parts, two domains, refusals.

The form of 16 bits is in `test_short_softmax`.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ibert_tvm.relay_passes.errors import RangeError
from ibert_tvm.relay_passes.spec.exponential import (
    PRINTED_EXPONENTIAL,
    RELEASED_EXPONENTIAL,
    BinaryExponential,
    PolynomialExponential,
    binary_exponential,
    exact_reciprocal,
    exponential,
)
from ibert_tvm.relay_passes.spec.values import Ranged, trace
from tests.snapshots import Messages

SCALES = [1e-6, 1e-5, 5e-5, 2.4e-4, 1e-3, 7.7e-3, 0.05]


def error(constants, scale: float, distances: np.ndarray) -> np.ndarray:
    got = exponential(distances, constants) / constants.maximum
    return np.abs(got - np.exp(-scale * distances))


def test_published_coefficients_reach_the_published_error() -> None:
    scale = 1e-5
    constants = PolynomialExponential.from_scale(scale, coefficients=RELEASED_EXPONENTIAL)
    e = error(constants, scale, np.arange(constants.q_ln2))
    assert e.max() == pytest.approx(1.9e-3, abs=0.06e-3)
    assert math.sqrt((e**2).mean()) == pytest.approx(1.37e-3, abs=0.03e-3)


def test_printed_coefficients_reach_their_error() -> None:
    scale = 1e-5
    constants = PolynomialExponential.from_scale(scale, coefficients=PRINTED_EXPONENTIAL)
    e = error(constants, scale, np.arange(constants.q_ln2))
    # 2.13e-3 before the maximum is made exactly 1, which takes the error at 0 away.
    assert 1.8e-3 < e.max() < 2.15e-3
    assert math.sqrt((e**2).mean()) < 1.45e-3


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("coefficients", [RELEASED_EXPONENTIAL, PRINTED_EXPONENTIAL])
def test_polynomial_form_equals_its_formula(scale: float, coefficients) -> None:
    k = PolynomialExponential.from_scale(scale, coefficients=coefficients)
    d = np.unique(np.linspace(0, 32 * k.q_ln2, 3000).astype(np.int64))
    got = exponential(d, k)
    for distance, value in zip(d.tolist(), got.tolist(), strict=True):
        distance = min(distance, k.max_z * k.q_ln2)
        z, p = distance // k.q_ln2, -(distance % k.q_ln2)
        polynomial = (p + k.q_b) * (p + k.q_d) + k.q_c
        rounded = (2 * polynomial + (1 << k.pre_shift)) >> (k.pre_shift + 1)
        scaled = (2 * rounded * k.multiplier + (1 << (k.shift + z))) >> (k.shift + z + 1)
        assert value == min(max(scaled, 0), k.maximum)


@pytest.mark.parametrize("maximum", [255, 32767])
def test_polynomial_form_starts_at_its_maximum(maximum: int) -> None:
    for scale in SCALES:
        k = PolynomialExponential.from_scale(scale, maximum)
        assert abs(int(exponential(np.array([0]), k)[0]) - maximum) <= 1


@given(st.integers(1, 2**27), st.integers(1, 2**31))
def test_division_by_reciprocal_is_exact(divisor: int, largest: int) -> None:
    multiplier, shift = exact_reciprocal(divisor, largest)
    assert largest * multiplier < 2**63
    last = largest // divisor * divisor
    for d in {0, 1, divisor - 1, divisor, last - 1, last, largest - 1, largest}:
        if 0 <= d <= largest:
            assert (d * multiplier) >> shift == d // divisor


@pytest.mark.parametrize("divisor", [1, 2, 3, 7, 69, 1000, 4097])
def test_division_by_reciprocal_is_exact_everywhere(divisor: int) -> None:
    d = np.arange(30 * divisor + 1)
    multiplier, shift = exact_reciprocal(divisor, 30 * divisor)
    np.testing.assert_array_equal((d * multiplier) >> shift, d // divisor)


@pytest.mark.representatives(2)
@pytest.mark.parametrize("scale", [1e-6, 1e-5, 1e-3, 0.05])
def test_polynomial_form_agrees_in_both_domains(both_domains, scale: float) -> None:
    constants = PolynomialExponential.from_scale(scale)
    random = np.random.default_rng(0)
    d = random.integers(-20, constants.q_ln2 * 32, 4096)
    d[:4] = [0, constants.q_ln2, constants.q_ln2 - 1, 2**31 - 1]
    both_domains(lambda v: exponential(v, constants), (d, -(2**31), 2**31 - 1))


TANH_SCALES = [1e-6, 1e-5, 5e-5, 2.4e-4, 1e-3, 7.7e-3, 0.05]


@pytest.mark.parametrize("scale", TANH_SCALES)
def test_binary_form_reaches_its_error(scale: float) -> None:
    k = BinaryExponential.for_tanh(scale)
    d = np.unique(np.linspace(0, k.limit * 1.1, 50_000).astype(np.int64))
    error = np.abs(binary_exponential(d, k) / k.maximum - np.exp(-2 * scale * d))
    # 6.31e-5 of the cubic, three roundings in 15 bits; the argument's resolution where it is cut
    # to 16 bits (exactly what the shift drops, at a slope of 2).
    assert error.max() < 6.31e-5 + 1.5 / 2**15 + 2 * scale * ((1 << k.pre_shift) - 1)


@pytest.mark.parametrize("scale", TANH_SCALES)
def test_binary_form_falls_from_its_exact_maximum_to_zero(scale: float) -> None:
    k = BinaryExponential.for_tanh(scale)
    d = np.unique(np.linspace(0, k.limit + 2, 20_000).astype(np.int64))
    e = binary_exponential(d, k)
    assert e[0] == k.maximum == 2**15
    assert e[-1] == 0 and e[d >= k.limit].max() == 0
    # The segments of the cubic meet within twice its error.
    assert np.diff(e).max() <= 5
    assert binary_exponential(np.array([-5]), k)[0] == k.maximum


@pytest.mark.parametrize("scale", [1e-5, 1e-3, 0.05])
def test_binary_form_agrees_in_both_domains(both_domains, scale: float) -> None:
    constants = BinaryExponential.for_tanh(scale)
    random = np.random.default_rng(0)
    d = random.integers(-20, constants.limit * 2, 4096)
    d[:5] = [0, 1, constants.limit, constants.limit - 1, 2**31 - 1]
    both_domains(lambda v: binary_exponential(v, constants), (d, -(2**31), 2**31 - 1))


@pytest.mark.parametrize("scale", [*TANH_SCALES, 0.3])
def test_binary_form_is_int32_throughout(scale: float) -> None:
    from tvm import tirx

    constants = BinaryExponential.for_tanh(scale)
    d = Ranged(-(2**31), 2**31 - 1, tirx.Var("d", "int32"))
    traced = trace(binary_exponential, d, constants)
    assert "int64" not in str(traced.expr)
    assert (traced.low, traced.high) == (0, constants.maximum)


def refused(make) -> str:
    with pytest.raises(RangeError) as caught:
        make()
    return str(caught.value)


def test_a_coarse_scale_is_refused(messages: Messages) -> None:
    messages.check(refused(lambda: BinaryExponential.for_tanh(0.4)))
    assert "by a factor of 2^2.89e+06\n" in refused(lambda: BinaryExponential.for_tanh(1e6))
    messages.check(refused(lambda: PolynomialExponential.from_scale(0.2)))


def test_a_fine_scale_is_refused(messages: Messages) -> None:
    messages.check(refused(lambda: BinaryExponential.for_tanh(5e-9)))
    messages.check(refused(lambda: PolynomialExponential.from_scale(1e-8)))


@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, math.inf])
@pytest.mark.parametrize(
    "make", [BinaryExponential.for_tanh, PolynomialExponential.from_scale], ids=["tanh", "softmax"]
)
def test_a_scale_that_is_none_is_refused(make, scale: float, messages: Messages) -> None:
    messages.check(refused(lambda: make(scale)))
