"""Requantisation in 16 bits: its formula, its saturation, its error, its refusals, both domains."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ibert_tvm.relay_passes.errors import RangeError
from ibert_tvm.relay_passes.spec.short_requantise import (
    ShortFactors,
    requantise_short,
    saturating_sum,
    short_factors,
)
from ibert_tvm.relay_passes.spec.values import Ranged, trace
from tests.snapshots import Messages

TARGETS = [None, "x86-avx512-vnni", "x86-64-v3", "x86-64"]
INT16 = np.arange(-(2**15), 2**15)
LIMIT = 2**31 - 1
INT8, UINT8, INT15 = (-127, 127, 0), (0, 255, 17), (1 - 2**14, 2**14 - 1, 0)
NAMES = {"int8": INT8, "uint8": UINT8, "15 bits": INT15}


def by_definition(x: int, m: int, p: int, shift: int, zero_point: int, low: int, high: int) -> int:
    """The formula of the operator's table, in unbounded integers."""

    def saturated(value: int) -> int:
        return max(-(2**15), min(2**15 - 1, value))

    product = (2 * saturated(x // 2**p) * m + 2**15) // 2**16
    half = 2**shift // 2
    return max(low, min(high, saturated(product + zero_point * 2**shift + half) // 2**shift))


def apply(x: np.ndarray, k: ShortFactors, bounds: tuple[int, int, int]) -> np.ndarray:
    low, high, zero_point = bounds
    m, p = k.multipliers.astype(np.int64), k.pre_shifts.astype(np.int64)
    return requantise_short(x, m, p, k.shift, zero_point, low, high)


def factors(real, magnitude: int, bounds: tuple[int, int, int], **options) -> ShortFactors:
    low, high, zero_point = bounds
    return short_factors(np.atleast_1d(real), magnitude, low, high, zero_point, **options)


def error_inside(
    x: np.ndarray, real: float, k: ShortFactors, bounds: tuple[int, int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """Distance from the real product, and from its rounding, where no bound cuts."""
    low, high, zero_point = bounds
    got, exact = apply(x, k, bounds), np.floor(x * real + 0.5) + zero_point
    inside = (exact > low) & (exact < high)
    return (got - zero_point - x * real)[inside], (got != exact)[inside]


@pytest.mark.representatives(2)
@pytest.mark.parametrize(
    ("multiplier", "pre_shift", "shift", "bounds"),
    [
        (23170, 0, 0, INT8),
        (32767, 0, 0, (-(2**15), 2**15 - 1, 0)),
        (1, 0, 7, INT8),
        (16384, 0, 6, UINT8),
        (30000, 3, 6, UINT8),
        (0, 5, 7, INT8),
        (29001, 1, 8, (-5, 59, -3)),
        (20011, 0, 2, (1 - 2**12, 2**12 - 1, 0)),
        (32767, 15, 7, INT8),
        (32767, 31, 7, INT8),
    ],
)
def test_all_of_16_bits_equal_the_formula(multiplier, pre_shift, shift, bounds) -> None:
    low, high, zero_point = bounds
    settings = shift, zero_point, low, high
    got = requantise_short(INT16, multiplier, pre_shift, *settings)
    expected = [by_definition(x, multiplier, pre_shift, *settings) for x in INT16.tolist()]
    assert got.tolist() == expected


@given(
    st.integers(-(2**31), 2**31 - 1),
    st.integers(0, 2**15 - 1),
    st.integers(0, 31),
    st.integers(0, 8),
    st.sampled_from([INT8, UINT8, (-5, 59, -3)]),
)
def test_any_int32_equals_the_formula(x, multiplier, pre_shift, shift, bounds) -> None:
    low, high, zero_point = bounds
    settings = multiplier, pre_shift, shift, zero_point, low, high
    assert requantise_short(np.array([x]), *settings).tolist() == [by_definition(x, *settings)]


@pytest.mark.parametrize("bounds", NAMES.values(), ids=NAMES)
@pytest.mark.parametrize("bits", [20, 24, 31])
def test_what_saturates_lies_beyond_the_bounds(bounds, bits: int) -> None:
    low, high, zero_point = bounds
    magnitude = 2**bits - 1
    for stretch in (0.5, 0.99, 1.7, 4.0):
        real = stretch * (high - low) / 2 / magnitude
        k = factors(real, magnitude, bounds)
        edge = 2**15 << int(k.pre_shifts[0])  # where the shifted value saturates
        near = np.concatenate([np.arange(-3, 4) + e for e in (edge, -edge, magnitude, -magnitude)])
        far = near[(np.abs(near) <= magnitude) & (np.abs(near) >= edge)]
        top, bottom = (high - zero_point) / real, (low - zero_point) / real
        ends = np.array([top, bottom]).astype(np.int64)
        x = np.concatenate([near, ends, ends + 1, ends - 1])
        x = x[np.abs(x) <= magnitude]
        got = apply(x, k, bounds)
        # No number wraps: as close to the clamped real product as elsewhere.
        exact = np.clip(x * real + zero_point, low, high)
        assert np.abs(got - exact).max() <= (1.75 if bounds is INT15 else 0.6)
        over = far[far > 0]
        np.testing.assert_array_equal(apply(over, k, bounds), np.full(over.shape, high))


@pytest.mark.parametrize(
    ("bounds", "most", "often"),
    [(INT8, 0.51, 0.0055), (UINT8, 0.515, 0.011), (INT15, 1.75, 0.55)],
    ids=NAMES,
)
def test_accumulators_are_close_to_exact_rounding(bounds, most: float, often: float) -> None:
    random = np.random.default_rng(1)
    low, high, _ = bounds
    errors, differing = [], []
    for _ in range(200):
        magnitude = 2 ** int(random.integers(20, 31))
        real = (high - low) / 2 / magnitude * random.uniform(0.5, 6)
        x = random.integers(-magnitude, magnitude + 1, 20_000)
        error, differs = error_inside(x, real, factors(real, magnitude, bounds), bounds)
        errors.append(np.abs(error).max())
        differing.append(differs.mean())
    assert 0.5 < max(errors) < most
    assert 0 < max(differing) < often
    if bounds is INT8:
        assert np.mean(differing) < 0.0022


@pytest.mark.parametrize(
    ("bounds", "most", "often"),
    [(INT8, 0.535, 0.035), (UINT8, 0.535, 0.035), (INT15, 1.0, 0.25)],
    ids=NAMES,
)
def test_all_of_16_bits_are_close_to_exact_rounding(bounds, most: float, often: float) -> None:
    errors, differing = [], []
    for real in np.geomspace(2.0**-12, 0.999, 60):
        if bounds is INT15 and real < 2.0**-8:
            continue  # refused
        error, differs = error_inside(INT16[1:], real, factors(real, 2**15 - 1, bounds), bounds)
        errors.append(np.abs(error).max())
        differing.append(differs.mean())
    assert 0.5 < max(errors) < most
    assert max(differing) < often


@pytest.mark.parametrize(
    ("real", "magnitude"), [(0.2, 2**15 - 1), (0.011, 2**15 - 1), (7e-5, 2**21)]
)
def test_what_rounding_adds_in_the_mean(real: float, magnitude: int) -> None:
    bounds = (-127, 127, 0)
    k = factors(real * np.array([1, 0.7]), magnitude, bounds)
    reach = min(magnitude, int(100 / real))
    x = np.arange(-reach, reach + 1, max(reach >> 17, 1))
    for channel in range(2):
        one = ShortFactors(k.multipliers[[channel]], k.pre_shifts[[channel]], k.shift)
        excess = (apply(x, one, bounds) - x * one.values[0]).mean()
        np.testing.assert_allclose(excess, k.excess[channel], atol=5e-4)
    assert np.abs(k.excess).max() < 2.0 ** -(k.shift + 1) * (1 if k.shift else 0) + 1e-9


def test_factors_may_differ_by_thousands_between_channels() -> None:
    random = np.random.default_rng(2)
    magnitude = 2**30
    reals = np.ldexp(random.uniform(0.5, 1, 64), -(np.arange(64) % 13) - 8)
    assert reals.max() / reals.min() > 2**12
    k = factors(reals, magnitude, INT8)
    assert k.multipliers.dtype == np.int16 and k.pre_shifts.dtype == np.int32
    assert (k.multipliers >= 2**14).all(), "every channel is normalised on its own"
    np.testing.assert_allclose(k.values, reals, rtol=2.0**-15)
    x = random.integers(-magnitude, magnitude + 1, (4000, 64))
    x[:64] = (x[:64] / np.abs(x[:64]).max() * 100 / reals).clip(-magnitude, magnitude)
    exact = np.clip(x * reals, -127, 127)
    assert np.abs(apply(x, k, INT8) - exact).max() < 0.52


@given(
    st.floats(2.0**-40, 0.99), st.integers(1, 31), st.sampled_from(list(NAMES.values())), st.data()
)
def test_any_factor_is_served_well_or_refused(real, bits, bounds, data) -> None:
    magnitude = 2**bits - 1
    try:
        k = factors(real, magnitude, bounds)
    except RangeError:
        assume(False)
    x = data.draw(st.integers(-magnitude, magnitude))
    low, high, zero_point = bounds
    exact = min(max(x * real + zero_point, low), high)
    got = int(apply(np.array([x]), k, bounds)[0])
    assert 0 <= k.multipliers[0] < 2**15 and 0 <= k.pre_shifts[0] <= 31 and 0 <= k.shift <= 8
    # A multiplier of 8 bits is exact to half a unit of the last of them.
    precision = 0.5 / max(int(k.multipliers[0]), 1) * abs(exact - zero_point)
    assert abs(got - exact) <= (1.75 if bounds is INT15 else 0.6) + precision


def test_zero_is_a_factor() -> None:
    k = factors([0.0, 1e-5], 2**24, INT8)
    x = np.array([[2**24, 2**24], [-(2**24), -(2**24)]])
    assert apply(x, k, INT8).tolist() == [[0, 127], [0, -127]]


def refused(*arguments, **options) -> str:
    with pytest.raises(RangeError) as caught:
        factors(*arguments, **options)
    return str(caught.value)


def test_a_result_of_16_bits_is_refused(messages: Messages) -> None:
    messages.check(refused(0.5, 2**20, (-(2**15) + 1, 2**15 - 1, 0)))
    messages.check(refused(0.5, 2**20, (0, 255, -(2**14))))


@pytest.mark.parametrize(("real", "shown"), [(-0.5, "-0.5"), (np.nan, "nan"), (np.inf, "inf")])
def test_a_factor_that_is_none_is_refused(real: float, shown: str, messages: Messages) -> None:
    messages.check(refused(real, 2**20, INT8))


def test_a_factor_of_one_is_refused(messages: Messages) -> None:
    for magnitude in (127, 2**20):
        messages.check(refused(1.0, magnitude, INT15))


def test_factors_too_far_apart_for_a_value_of_16_bits_are_refused(messages: Messages) -> None:
    messages.check(refused([0.75, 2.0**-13], 2**15 - 1, INT8))
    k = factors([0.75, 2.0**-13], 2**15 - 1, INT8, least_bits=1)
    assert k.multipliers.tolist() == [24576, 4]


def test_a_sum_saturates_at_its_bounds() -> None:
    a, b = np.array([16383, -16383, 16383, 5, -(2**31)]), np.array([16383, -1, -16383, 6, -1])
    got = saturating_sum(a, b, -16383, 16383)
    assert got.tolist() == [16383, -16383, 0, 11, -16383]


@pytest.mark.representatives(1)
@pytest.mark.parametrize("target", TARGETS)
def test_sums_agree_in_both_domains(both_domains, target: str | None) -> None:
    random = np.random.default_rng(3)
    a, b = random.integers(-(2**15), 2**15, (2, 4096))
    a[:4], b[:4] = [-32768, 32767, -32768, 32767], [-32768, 32767, 32767, -32768]
    operands = (a, -(2**15), 2**15 - 1), (b, -(2**15), 2**15 - 1)
    for bound in (2**14 - 1, 2**15 - 1):
        both_domains(lambda x, y, n=bound: saturating_sum(x, y, -n, n), *operands, target=target)


@pytest.mark.representatives(1)
@pytest.mark.parametrize("bounds", NAMES.values(), ids=NAMES)
@pytest.mark.parametrize("target", TARGETS)
def test_accumulators_agree_in_both_domains(both_domains, target: str | None, bounds) -> None:
    low, high, zero_point = bounds
    random = np.random.default_rng(4)
    x = random.integers(-(2**31), 2**31, 4096) >> random.integers(0, 20, 4096)
    x[:6] = [-(2**31), 2**31 - 1, 2**15 - 1, -(2**15), 0, -1]
    reals = np.ldexp(random.uniform(0.5, 1, x.size), -random.integers(16, 28, x.size))
    k = factors(reals, LIMIT, bounds)
    both_domains(
        lambda v, m, p: requantise_short(v, m, p, k.shift, zero_point, low, high),
        (x, -(2**31), 2**31 - 1),
        (k.multipliers, 0, 2**15 - 1),
        (k.pre_shifts, 0, 31),
        target=target,
    )


@pytest.mark.representatives(1)
@pytest.mark.parametrize("target", TARGETS)
def test_all_of_16_bits_agree_in_both_domains(both_domains, target: str | None) -> None:
    for multiplier, shift, bounds in ((20011, 0, INT15), (7001, 6, UINT8), (911, 7, INT8)):
        low, high, zero_point = bounds
        both_domains(
            lambda v, m=multiplier, s=shift, b=(zero_point, low, high): requantise_short(
                v, m, 0, s, *b
            ),
            (INT16, -(2**15), 2**15 - 1),
            target=target,
        )


def test_a_value_of_16_bits_is_requantised_without_leaving_them() -> None:
    from tvm import tirx

    x = Ranged(-(2**15), 2**15 - 1, tirx.Var("x", "int16"), is_short=True)
    traced = trace(requantise_short, x, 7001, 0, 6, 17, 0, 255)
    assert traced.is_short
    assert "int32" not in str(traced.expr) and "int64" not in str(traced.expr)


def test_no_number_of_64_bits_occurs() -> None:
    from tvm import tirx

    x, m, p = (
        tirx.Var(name, dtype) for name, dtype in (("x", "int32"), ("m", "int16"), ("p", "int32"))
    )
    traced = trace(
        requantise_short,
        Ranged(-(2**31), 2**31 - 1, x),
        Ranged(0, 2**15 - 1, m),
        Ranged(0, 31, p),
        7,
        0,
        -127,
        127,
    )
    assert traced.is_short and "int64" not in str(traced.expr)
