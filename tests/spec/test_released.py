"""The released arithmetic, against Python's unbounded integers and fractions."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ibert_tvm.relay_passes.errors import RangeError
from ibert_tvm.relay_passes.spec.gelu import gelu_paper
from ibert_tvm.relay_passes.spec.released import (
    ReleasedExponential,
    ReleasedLayerNorm,
    exact_factors,
    layer_norm,
    released_gelu,
    requantise_even,
    round_even,
)
from ibert_tvm.relay_passes.spec.released.rounding import (
    ExactFactors,
    mantissa_and_exponent,
    mean_even,
)
from ibert_tvm.relay_passes.spec.values import Ranged, ranged
from tests.snapshots import Messages

INT64 = np.int64
INT8 = (-128, 127)


def exact(value: int, real: float) -> int:
    """``round(value m / 2^e)``, halves to even, as Python's Fraction rounds."""
    m, e = mantissa_and_exponent(real)
    return round(Fraction(value * m) / Fraction(2) ** e)


def requantised(value: int, factors: ExactFactors) -> int:
    """A number times the only factor, within 41 bits."""
    constants = (array.astype(INT64) for array in (factors.multipliers, factors.shifts))
    got = requantise_even(np.array([value], INT64), *constants, factors.split, 0, -(2**40), 2**40)
    return int(got[0])


@given(st.integers(-(2**61), 2**61), st.integers(1, 62))
def test_rounding_is_to_the_nearest_and_halves_to_even(value: int, n: int) -> None:
    want = round(Fraction(value, 2**n))
    assert int(round_even(np.array([value], INT64), n)[0]) == want
    assert int(round_even(np.array([value], INT64), np.array([n], INT64))[0]) == want


def test_halves_go_to_the_even_neighbour() -> None:
    halves = np.arange(-9, 10, 2, dtype=INT64)
    assert round_even(halves, 1).tolist() == [-4, -4, -2, -2, 0, 0, 2, 2, 4, 4]


@given(st.integers(0, 61), st.data())
def test_requantisation_equals_unbounded_arithmetic(bits: int, data: st.DataObject) -> None:
    magnitude = (1 << bits) - 1
    value = data.draw(st.integers(-magnitude, magnitude))
    real = data.draw(st.floats(1e-3, 1e3)) * 2.0**-bits * data.draw(st.sampled_from([-1, 1, 100]))
    factors = exact_factors(np.array([real]), magnitude)
    assert requantised(value, factors) == exact(value, real)


@given(st.integers(-(2**58), 2**58), st.integers(0, 8))
def test_a_tie_is_seen_through_the_split(odd: int, power: int) -> None:
    """``value * 2^30 / 2^e`` with the half exactly below: the sticky bit must stay clear."""
    real = 2.0 ** -(40 + power)
    factors = exact_factors(np.array([real]), 2**61 - 1)
    assert factors.split > 0
    for value in (odd, odd + 1, (odd >> 20) << (39 + power) & (2**60 - 1)):
        assert requantised(value, factors) == round(Fraction(value) * Fraction(real))


def test_a_ratio_of_one_is_the_identity() -> None:
    factors = exact_factors(np.array([1.0]), 32767)
    assert (factors.multipliers.tolist(), factors.shifts.tolist()) == ([2**30], [30])


def test_a_mantissa_that_rounds_up_to_two_to_the_31_is_the_same_number() -> None:
    assert mantissa_and_exponent(1.0 - 2.0**-40) == (2**30, 30)
    assert mantissa_and_exponent(-0.75) == (-3 * 2**29, 31)


def test_a_factor_that_leaves_nothing_gives_zero() -> None:
    factors = exact_factors(np.array([2.0**-70]), 2**20)
    assert (factors.multipliers.tolist(), factors.shifts.tolist()) == ([0], [62])


def test_factors_that_cannot_serve_are_refused(messages: Messages) -> None:
    with messages.raises(RangeError):
        exact_factors(np.array([1.0, np.inf]), 100)
    with messages.raises(RangeError):
        exact_factors(np.array([2.0**31]), 100)


@pytest.mark.representatives(2)
@pytest.mark.parametrize("bits", [20, 31, 45, 60])
def test_requantisation_is_the_same_compiled(both_domains, bits: int) -> None:
    random = np.random.default_rng(bits)
    top = (1 << bits) - 1
    value = random.integers(-top, top + 1, 512)
    reals = np.exp(random.uniform(np.log(1.0), np.log(1e3), 512)) / 2.0**bits
    factors = exact_factors(reals * random.choice([-1, 1], 512), top)
    got = both_domains(
        lambda x, m, n: requantise_even(x, m, n, factors.split, 0, *INT8),
        (value, -top, top),
        (factors.multipliers, -(2**31) + 1, 2**31 - 1),
        (factors.shifts, int(factors.shifts.min()), int(factors.shifts.max())),
    )
    want = [
        max(-128, min(127, exact(int(v), r)))
        for v, r in zip(value, np.where(factors.multipliers < 0, -reals, reals), strict=True)
    ]
    assert got.tolist() == want


@given(st.integers(-(2**30), 2**30), st.integers(1, 1024))
def test_a_mean_is_rounded_half_to_even(total: int, count: int) -> None:
    assert int(mean_even(np.array([total], INT64), count)[0]) == round(Fraction(total, count))


def test_a_mean_is_the_same_compiled(both_domains) -> None:
    total = np.arange(-4000, 4000)
    both_domains(lambda x: mean_even(x, 64), (total, -4000, 3999))


def released_exponential(d: int, scale: float, result_scale: float) -> int:
    """The released lines, in unbounded integers."""
    x0 = math.floor(-0.6931 / scale)
    b = math.floor(0.96963238 / 0.35815147 / scale)
    c = math.floor(1.0 / 0.35815147 / scale**2)
    x = max(-d, 30 * x0)
    q = x // x0
    r = x - x0 * q
    e = max(((r + b) * r + c) * 2 ** (30 - q), 0)
    return max(-32768, min(32767, exact(e, 1.0 / result_scale)))


@pytest.mark.representatives(2)
@pytest.mark.parametrize("scale", [3e-8, 4e-7, 2e-5, 1e-4, 5e-4, 1e-2, 0.3])
@pytest.mark.parametrize("drift", [1.0, 0.71, 1.4])
def test_the_exponential_is_the_released_one(both_domains, scale: float, drift: float) -> None:
    top = math.floor(1.0 / 0.35815147 / scale**2) * 2.0**30
    k = ReleasedExponential.from_scales(scale, top * drift / 32767)
    far = min(2**30, int(25 / scale))
    random = np.random.default_rng(3)
    d = np.concatenate([np.arange(min(far, 200)), random.integers(0, far, 400)])
    edges = np.arange(1, 32)[:, None] * k.q_ln2 + np.array([-1, 0, 1])
    d = np.concatenate([d, edges[edges < 2**31 - 1].ravel()])
    got = both_domains(k.evaluate, (d, 0, 2**31 - 1))
    assert got.tolist() == [released_exponential(int(x), scale, top * drift / 32767) for x in d]
    assert int(got.max()) == k.maximum == got[0]


def test_an_exponential_that_cannot_be_expressed_is_refused(messages: Messages) -> None:
    with messages.raises(RangeError):
        ReleasedExponential.from_scales(1e-10, 1e20)
    with messages.raises(RangeError):
        ReleasedExponential.from_scales(1e-3, 1e20)


def released_gelu_value(q: int, scale: float) -> int:
    """The released lines, in unbounded integers."""
    inner = scale / 1.4142
    b = math.floor(-1.769 / inner)
    c = math.floor(1.0 / -0.2888 / inner**2)
    sign = (q > 0) - (q < 0)
    y = sign * ((min(abs(q), -b) + b) ** 2 + c)
    erf = y // 2**14
    return q * (erf + math.floor(1.0 / (inner**2 * -0.2888 * 2.0**14)))


@pytest.mark.representatives(2)
@pytest.mark.parametrize("scale", [1e-6, 3e-5, 2.7e-4, 1e-3, 5e-3, 2e-2])
def test_gelu_is_the_released_one_at_every_scale(both_domains, scale: float) -> None:
    k = released_gelu(np.array([scale]))
    far = int(8 / scale)
    q = np.unique(np.linspace(-far, far, 4001).astype(INT64))
    constants = [int(array[0]) for array in (k.q_b, k.q_c, k.q_1, k.erf_shift)]
    got = both_domains(lambda x: gelu_paper(x, *constants), (q, -far, far))
    assert got.tolist() == [released_gelu_value(int(x), scale) for x in q]
    assert k.scales[0] == scale * ((scale / 1.4142) ** 2 * -0.2888 * 2.0**14) / 2.0


def test_a_scale_too_fine_for_gelu_names_its_channel(messages: Messages) -> None:
    with messages.raises(RangeError):
        released_gelu(np.array([1e-4, 1e-8]))


def released_norm(row: list[int], offset: list[int], shift: int) -> list[int]:
    """The released lines, in unbounded integers."""
    mean = round(Fraction(sum(row), len(row)))
    y = [x - mean for x in row]
    std = max(math.isqrt(sum((v >> shift) ** 2 for v in y)), 1) << shift
    factor = 2**31 // std
    return [v * factor // 2 + o for v, o in zip(y, offset, strict=True)]


@given(st.lists(st.integers(-(2**21), 2**21 - 1), min_size=2, max_size=40), st.integers(0, 8))
def test_a_row_is_normalised_as_released(row: list[int], shift: int) -> None:
    k = ReleasedLayerNorm(shift)
    x, offset = np.array(row, INT64), np.arange(len(row), dtype=INT64) - 3
    d = x - layer_norm.mean_of(x.sum(), len(row))
    squares = layer_norm.square(d, k).sum()
    factor = layer_norm.factor(squares, layer_norm.root_half_bits(squares), k)
    got = layer_norm.normalise(d, factor, offset)
    assert got.tolist() == released_norm(row, offset.tolist(), shift)
    assert np.abs(got - offset).max() <= layer_norm.NORMALISED_LIMIT


def test_a_constant_row_gives_the_offset() -> None:
    k, x = ReleasedLayerNorm(0), np.full(8, 1234, INT64)
    d = x - layer_norm.mean_of(x.sum(), 8)
    squares = layer_norm.square(d, k).sum()
    factor = layer_norm.factor(squares, layer_norm.root_half_bits(squares), k)
    assert layer_norm.normalise(d, factor, np.arange(8)).tolist() == list(range(8))


def test_the_factor_of_a_row_is_the_same_compiled(both_domains) -> None:
    k = ReleasedLayerNorm(3)
    total = np.concatenate([np.arange(100), np.random.default_rng(0).integers(0, 2**53, 400)])
    both_domains(
        lambda v: layer_norm.factor(v, layer_norm.root_half_bits(v), k),
        (total, 0, 2**53),
        vectorise=False,
    )


def test_offsets_are_floors_of_beta_over_gamma() -> None:
    gamma, beta = np.array([0.5, -2.0, 1e-3, 1.0]), np.array([0.1, 0.3, 0.0, -1.0])
    offset, scale = layer_norm.offset_and_scale(gamma, beta)
    unit = 2.0 / 2**30
    assert offset.tolist() == [math.floor(b / g / unit) for b, g in zip(beta, gamma, strict=True)]
    np.testing.assert_array_equal(scale, gamma * unit)


def test_a_gamma_of_zero_is_refused(messages: Messages) -> None:
    with messages.raises(RangeError):
        layer_norm.offset_and_scale(np.array([1.0, 0.0, 0.0]), np.ones(3))


def test_a_gamma_all_but_zero_is_refused(messages: Messages) -> None:
    with messages.raises(RangeError):
        layer_norm.offset_and_scale(np.array([1.0, 1e-30]), np.ones(2))


def test_a_shift_out_of_range_is_refused(messages: Messages) -> None:
    with messages.raises(RangeError):
        ReleasedLayerNorm(32)


def test_intervals_hold_for_the_widest_operands() -> None:
    factors = exact_factors(np.array([1e-9, -2e-9]), 2**60)
    result = requantise_even(
        Ranged(-(2**60), 2**60),
        ranged(factors.multipliers),
        ranged(factors.shifts),
        factors.split,
        0,
        *INT8,
    )
    assert (result.low, result.high) == INT8
