"""i-layer-norm of 15-bit inputs: bounds that hold for any row, errors, both domains, refusals."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ibert_tvm.relay_passes.errors import RangeError
from ibert_tvm.relay_passes.spec import short_layer_norm as norm
from ibert_tvm.relay_passes.spec.layer_norm import LayerNormAffine, mean_of
from ibert_tvm.relay_passes.spec.short_layer_norm import INPUT_LIMIT, ShortLayerNorm
from ibert_tvm.relay_passes.spec.values import Ranged, trace
from tests.snapshots import Messages

TARGETS = [None, "x86-avx512-vnni", "x86-64-v3", "x86-64"]
OUT = 8 / 32767
ONE = 2**16


def stages(x: np.ndarray, k: ShortLayerNorm) -> tuple[np.ndarray, ...]:
    """Deviation, bits of the root and reciprocal of rows [rows, C]."""
    y = norm.bounded(x)
    d = norm.deviation(y, mean_of(y.sum(-1, keepdims=True), x.shape[-1]))
    total = norm.square(d).sum(-1, keepdims=True)
    s = norm.root(total, norm.root_half_bits(total, k), k)
    bits = norm.root_bits(s, k)
    return d, total, s, bits, norm.reciprocal(s, bits)


def normalised(x: np.ndarray, k: ShortLayerNorm) -> np.ndarray:
    """n = d / s in Q16, before gain and offset."""
    d, _, _, bits, factor = stages(x, k)
    return (d * factor) >> (bits - (k.root_fraction_bits + 1))


def run(x: np.ndarray, k: ShortLayerNorm, affine: LayerNormAffine) -> np.ndarray:
    d, _, _, bits, factor = stages(x, k)
    gain = affine.gain.astype(np.int64)
    offset = affine.offset.astype(np.int64) + (gain >> 1)
    return norm.normalise(d, bits, factor, gain, offset, k, affine.shift, -32767, 32767)


def reference(x: np.ndarray, gamma: np.ndarray, beta: np.ndarray, epsilon: float) -> np.ndarray:
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + epsilon) * gamma + beta


def adversarial_rows(channels: int) -> np.ndarray:
    """Rows whose deviations are as large beside their root as can be, and other extremes."""
    top = INPUT_LIMIT
    rows = []
    for big in (1, 2, 3, 7, 127, 128, 129, 8191, top - 1, top):
        for base in (0, -1, 1, -top, top):
            for place in (0, channels - 1):
                row = np.full(channels, base)
                row[place] = max(-top, min(top, base - big if base > 0 else base + big))
                rows += [row, -row]
    half = np.full(channels, top)
    half[::2] = -top
    rows += [half, np.arange(channels) % 2, np.linspace(-top, top, channels).astype(np.int64)]
    return np.array(rows)


@pytest.mark.parametrize("channels", [1, 2, 3, 33, 384, 768, 1024, 4096])
@pytest.mark.parametrize("epsilon", [4, 5, 1000, 2**30])
def test_no_deviation_exceeds_the_root(channels: int, epsilon: int) -> None:
    fraction = ShortLayerNorm.from_scale(1.0, epsilon / channels, channels).root_fraction_bits
    k = ShortLayerNorm(epsilon, fraction)
    x = adversarial_rows(channels)
    d, _, s, _, factor = stages(x, k)
    assert (np.abs(d) << k.root_fraction_bits <= s).all()
    assert (s >= 2 << k.root_fraction_bits).all()
    assert factor.min() >= 2**14 and factor.max() < 2**15
    # The theorem that the intervals rely on.
    n = normalised(x, k)
    assert n.min() >= -ONE and n.max() <= ONE


@given(
    st.lists(st.integers(-INPUT_LIMIT, INPUT_LIMIT), min_size=1, max_size=9), st.integers(4, 2**12)
)
def test_normalised_deviations_are_at_most_one_and_exact_to_2_to_the_14(x, epsilon) -> None:
    fraction = ShortLayerNorm.from_scale(1.0, epsilon / len(x), len(x)).root_fraction_bits
    k = ShortLayerNorm(epsilon, fraction)
    row = np.array([x])
    n = normalised(row, k)
    assert np.abs(n).max() <= ONE
    d, total, *_ = stages(row, k)
    exact = d / math.sqrt(int(total[0, 0]) + epsilon) * ONE
    # Floor of the product; floors of reciprocal and root.
    assert (np.abs(n - exact) <= 1 + np.abs(exact) * 1.1 * 2.0**-14).all()


@given(
    st.lists(st.integers(-INPUT_LIMIT, INPUT_LIMIT), min_size=1, max_size=9), st.integers(4, 2**20)
)
def test_root_and_its_parts_are_exact(x, epsilon: int) -> None:
    fraction = ShortLayerNorm.from_scale(1.0, epsilon / len(x), len(x)).root_fraction_bits
    k = ShortLayerNorm(epsilon, fraction)
    _, total, s, bits, factor = stages(np.array([x]), k)
    root = math.isqrt((int(total[0, 0]) + epsilon) << (2 * k.root_fraction_bits))
    assert s.item() == max(root, 2 << k.root_fraction_bits)
    assert bits.item() == s.item().bit_length() - 1
    assert factor.item() == min(2 ** (15 + bits.item()) // s.item(), 2**15 - 1)


@pytest.mark.parametrize("channels", [33, 384, 768, 1024])
@pytest.mark.parametrize(("spread", "bound"), [(4000, 1.6e-3), (1000, 4e-3), (300, 9e-3)])
def test_error_against_float64(channels: int, spread: int, bound: float) -> None:
    # The mean is rounded to whole units, which shows where a unit is not small beside the spread:
    # by half of it, over the spread, times gamma.
    random = np.random.default_rng(channels)
    scale, epsilon = 1e-3, 1e-12
    x = np.clip(np.round(random.normal(0, spread, (40, channels))), -INPUT_LIMIT, INPUT_LIMIT)
    gamma, beta = random.normal(0, 1, channels), random.normal(0, 1, channels)
    gamma[:3] = [-0.7, 0.0, 1e-9]
    affine = LayerNormAffine.from_scale(gamma, beta, OUT)
    k = ShortLayerNorm.from_scale(scale, epsilon, channels)
    expected = np.clip(reference(x * scale, gamma, beta, epsilon), -8, 8)
    error = np.abs(run(x.astype(np.int64), k, affine) * OUT - expected)
    assert error.max() < bound
    assert math.sqrt((error**2).mean()) < bound / 4


def test_an_outlier_of_full_range() -> None:
    random = np.random.default_rng(0)
    channels, scale = 768, 1e-3
    x = np.round(random.normal(0, 200, (40, channels)))
    x[:20, 77], x[20:, 5] = INPUT_LIMIT, -INPUT_LIMIT
    gamma, beta = np.ones(channels), np.zeros(channels)
    affine = LayerNormAffine.from_scale(gamma, beta, 32 / 32767)
    k = ShortLayerNorm.from_scale(scale, 1e-5, channels)
    expected = reference(x * scale, gamma, beta, 1e-5)
    error = np.abs(run(x.astype(np.int64), k, affine) * 32 / 32767 - expected)
    assert np.abs(expected).max() > 20
    assert error.max() < 4e-3


def test_a_constant_row_gives_beta() -> None:
    beta = np.array([0.5, -1.25, 0.0, 3.0])
    affine = LayerNormAffine.from_scale(np.array([1.0, -2.0, 0.0, 0.3]), beta, 4 / 32767)
    k = ShortLayerNorm.from_scale(1e-3, 1e-12, 4)
    for level in (0, 1, -77, INPUT_LIMIT, -INPUT_LIMIT, 10**6, -(10**7)):
        got = run(np.full((1, 4), level), k, affine)
        np.testing.assert_array_equal(got[0], np.round(beta / (4 / 32767)))


@pytest.mark.representatives(1)
@pytest.mark.parametrize("target", TARGETS)
def test_stages_agree_in_both_domains(both_domains, target: str | None) -> None:
    random = np.random.default_rng(1)
    channels = 384
    k = ShortLayerNorm.from_scale(1e-3, 1e-12, channels)
    fraction = k.root_fraction_bits
    wide = 2 * INPUT_LIMIT
    x = random.integers(-(2**31), 2**31, 1024) >> random.integers(0, 24, 1024)
    y = both_domains(norm.bounded, (x, -(2**31), 2**31 - 1), target=target)
    total = random.integers(-channels * INPUT_LIMIT, channels * INPUT_LIMIT, 1024)
    bound = channels * INPUT_LIMIT
    mean = both_domains(
        lambda v: mean_of(v, channels), (total, -bound, bound), vectorise=False, target=target
    )
    limits = -INPUT_LIMIT, INPUT_LIMIT
    d = both_domains(norm.deviation, (y, *limits), (mean, *limits), target=target)
    squares = both_domains(norm.square, (d, -wide, wide), target=target)
    total = np.maximum(squares * random.integers(1, channels, 1024), squares)
    largest = channels * wide**2
    total[:4] = [0, 1, squares[2], largest]
    half = both_domains(
        lambda v: norm.root_half_bits(v, k), (total, 0, largest), vectorise=False, target=target
    )
    s = both_domains(
        lambda v, h: norm.root(v, h, k),
        (total, 0, largest),
        (half, 1, 31),
        vectorise=False,
        target=target,
    )
    ends = 2 << fraction, 2**31 - 1
    bits = both_domains(lambda v: norm.root_bits(v, k), (s, *ends), vectorise=False, target=target)
    factor = both_domains(
        norm.reciprocal, (s, *ends), (bits, fraction + 1, 30), vectorise=False, target=target
    )
    d = np.clip(d, -(s >> fraction), s >> fraction)  # what a root of these deviations is not below
    gain = random.integers(-(2**14) + 1, 2**14, 1024)
    offset = random.integers(-(2**29) + 1, 2**29, 1024)
    both_domains(
        lambda *v: norm.normalise(*v, k, 13, -32767, 32767),
        (d, -wide, wide),
        (bits, fraction + 1, 30),
        (factor, 2**14, 2**15 - 1),
        (gain, -(2**14), 2**14),
        (offset, -(2**29), 2**29),
        target=target,
    )


def test_entries_are_int32_throughout() -> None:
    from tvm import tirx

    k = ShortLayerNorm.from_scale(1e-3, 1e-12, 768)
    names = ("d", "bits", "factor", "gain", "offset")
    wide = 2 * INPUT_LIMIT
    bounds = [
        (-wide, wide),
        (k.root_fraction_bits + 1, 30),
        (2**14, 2**15 - 1),
        (-(2**14), 2**14),
        (-(2**29), 2**29),
    ]
    operands = [
        Ranged(low, high, tirx.Var(name, "int32"))
        for name, (low, high) in zip(names, bounds, strict=True)
    ]
    traced = trace(norm.normalise, *operands, k, 13, -32767, 32767)
    assert "int64" not in str(traced.expr)


@pytest.mark.parametrize(
    ("channels", "fraction_bits"), [(1, 16), (384, 11), (768, 11), (1024, 11), (4096, 10)]
)
def test_the_root_has_the_bits_that_62_leave(channels: int, fraction_bits: int) -> None:
    k = ShortLayerNorm.from_scale(1e-3, 1e-12, channels)
    assert k == ShortLayerNorm(4, fraction_bits), "an epsilon of less than 4 units counts as 4"
    largest = channels * (2 * INPUT_LIMIT) ** 2 + k.epsilon
    assert 2**60 <= largest << (2 * fraction_bits) < 2**62


def test_an_epsilon_too_large_is_refused(messages: Messages) -> None:
    with messages.raises(RangeError):
        ShortLayerNorm.from_scale(1e-8, 1e-3, 768)
