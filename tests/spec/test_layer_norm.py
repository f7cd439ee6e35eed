"""i-layer-norm: accuracy, degenerate rows and weights, exact integers, two domains, refusals."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ibert_tvm.relay_passes.errors import RangeError
from ibert_tvm.relay_passes.spec import layer_norm
from ibert_tvm.relay_passes.spec.layer_norm import LayerNormAffine, LayerNormConstants
from ibert_tvm.relay_passes.spec.short_layer_norm import ShortLayerNorm
from tests.snapshots import Messages
from tests.spec import test_short_layer_norm

LOW, HIGH = -32767, 32767


def run(
    x: np.ndarray, constants: LayerNormConstants, affine: LayerNormAffine, low=LOW, high=HIGH
) -> np.ndarray:
    """All stages on rows [..., C]."""
    y = layer_norm.bounded(x, constants)
    mean = layer_norm.mean_of(y.sum(-1, keepdims=True), x.shape[-1])
    d = layer_norm.deviation(y, mean)
    total = layer_norm.square(d).sum(-1, keepdims=True)
    inverse = layer_norm.inverse_std(total, layer_norm.root_half_bits(total, constants), constants)
    gain, offset = affine.gain.astype(np.int64), affine.offset.astype(np.int64)
    return layer_norm.normalise(d, inverse, gain, offset, constants, affine.shift, low, high)


def reference(x: np.ndarray, gamma: np.ndarray, beta: np.ndarray, epsilon: float) -> np.ndarray:
    d = x - x.mean(-1, keepdims=True)
    return gamma * d / np.sqrt((d**2).mean(-1, keepdims=True) + epsilon) + beta


def integers(q: list[int], k: LayerNormConstants, gain: list[int], offset: list[int], shift: int):
    """The same with Python's unbounded integers."""

    def clamp(v: int, low: int, high: int) -> int:
        return min(max(v, low), high)

    y = [clamp(v, -k.input_limit, k.input_limit) for v in q]
    mean = (sum(y) + len(y) // 2) // len(y)
    d = [v - mean for v in y]
    radicand = (sum(v * v for v in d) + k.epsilon) * 4**k.root_fraction_bits
    inverse = (1 << (k.reciprocal_bits + k.root_fraction_bits)) // max(math.isqrt(radicand), 1)
    drop, one = k.reciprocal_bits - k.normalised_bits, 1 << k.normalised_bits
    n = [clamp((v * inverse + (1 << (drop - 1))) >> drop, -one, one) for v in d]
    half = (1 << shift) >> 1
    return [
        clamp((v * g + o + half) >> shift, LOW, HIGH)
        for v, g, o in zip(n, gain, offset, strict=True)
    ]


def example(channels: int, reciprocal_bits: int, scale: float = 2e-3, spread: float = 2.0):
    random = np.random.default_rng(channels)
    gamma, beta = random.normal(1, 0.3, channels), random.normal(0, 0.5, channels)
    gamma[:3] = [-0.7, 0.0, 1e-9]
    q = np.round(random.normal(0.3, spread, (20, channels)) / scale).astype(np.int64)
    constants = LayerNormConstants.from_scale(scale, 1e-12, channels, reciprocal_bits)
    affine = LayerNormAffine.from_scale(gamma, beta, 8 / 32767)
    expected = reference(q * scale, gamma, beta, 1e-12)
    return q, constants, affine, expected


@pytest.mark.parametrize("channels", [33, 384, 768, 1024])
@pytest.mark.parametrize(("reciprocal_bits", "bound"), [(40, 1.5e-3), (31, 1.5e-3)])
def test_accuracy_with_negative_and_zero_gamma(
    channels: int, reciprocal_bits: int, bound: float
) -> None:
    q, constants, affine, expected = example(channels, reciprocal_bits)
    got = run(q, constants, affine) * (8 / 32767)
    assert np.abs(got - np.clip(expected, -8, 8)).max() < bound


def test_released_reciprocal_loses_bits_where_the_input_is_wide() -> None:
    errors = {}
    for bits in (40, 31):
        q, constants, affine, expected = example(768, bits, scale=1e-5)
        errors[bits] = np.abs(run(q, constants, affine) * (8 / 32767) - np.clip(expected, -8, 8))
    assert errors[40].max() < 8e-4 < 2e-3 < errors[31].max() < 2e-2


def test_a_constant_row_gives_beta() -> None:
    beta = np.array([0.5, -1.25, 0.0, 3.0])
    affine = LayerNormAffine.from_scale(np.array([1.0, -2.0, 0.0, 0.3]), beta, 4 / 32767)
    constants = LayerNormConstants.from_scale(1e-3, 1e-12, 4)
    for level in (0, 1, -77, 32767, 10**6, -(10**7)):
        got = run(np.full((1, 4), level), constants, affine)
        np.testing.assert_array_equal(got[0], np.round(beta / (4 / 32767)))


def test_all_gamma_zero_gives_beta() -> None:
    beta = np.array([0.5, -1.25, 1.0])
    affine = LayerNormAffine.from_scale(np.zeros(3), beta, 1e-3)
    got = run(np.array([[5, -900, 3]]), LayerNormConstants.from_scale(1e-3, 1e-5, 3), affine)
    np.testing.assert_array_equal(got[0], [500, -1250, 1000])


@pytest.mark.parametrize(
    ("form", "rows"),
    [(LayerNormConstants, run), (ShortLayerNorm, test_short_layer_norm.run)],
    ids=["any", "15 bits"],
)
def test_epsilon_counts_where_the_variance_is_small(form: Any, rows: Callable[..., Any]) -> None:
    random = np.random.default_rng(0)
    gamma, beta, scale = np.ones(64), np.zeros(64), 1e-4
    half = random.integers(-30, 31, (8, 32))
    q = np.concatenate([half, -half], axis=1)  # the mean is exactly 0
    expected = reference(q * scale, gamma, beta, 1e-5)
    constants = form.from_scale(scale, 1e-5, 64)
    assert constants.epsilon == 64_000
    got = rows(q, constants, LayerNormAffine.from_scale(gamma, beta, 2 / 32767)) * (2 / 32767)
    assert np.abs(got - expected).max() < 5e-4
    assert np.abs(expected).max() < 1.5, "without epsilon it would be about 1.7"


@given(
    st.lists(st.integers(-(2**22), 2**22), min_size=1, max_size=9),
    st.sampled_from([31, 40]),
    st.integers(0, 2**32),
)
def test_equals_unbounded_integers(q: list[int], reciprocal_bits: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    gain = random.integers(-(2**14) + 1, 2**14, len(q)).astype(np.int32)
    offset = random.integers(-(2**29) + 1, 2**29, len(q)).astype(np.int32)
    fraction = seed % 7
    constants = LayerNormConstants(2**20 - 1, 1 + seed % 1000, reciprocal_bits, 16, fraction)
    got = run(np.array(q), constants, LayerNormAffine(gain, offset, 13))
    assert got.tolist() == integers(q, constants, gain.tolist(), offset.tolist(), 13)


def test_stages_agree_in_both_domains(both_domains) -> None:
    random = np.random.default_rng(1)
    k = LayerNormConstants.from_scale(1e-3, 1e-12, 384)
    x = random.integers(-(2**31), 2**31, 1024) >> random.integers(0, 24, 1024)
    y = both_domains(lambda v: layer_norm.bounded(v, k), (x, -(2**31), 2**31 - 1))
    limit = k.input_limit
    sums = random.integers(-384 * limit, 384 * limit, 1024)
    mean = both_domains(lambda v: layer_norm.mean_of(v, 384), (sums, -384 * limit, 384 * limit))
    d = both_domains(layer_norm.deviation, (y, -limit, limit), (mean, -limit, limit))
    squares = both_domains(layer_norm.square, (d, -2 * limit, 2 * limit))
    total = squares * random.integers(1, 384, 1024)
    total[:3] = [0, 1, 384 * (2 * limit) ** 2]
    bounds = (0, 384 * (2 * limit) ** 2)
    half = both_domains(lambda v: layer_norm.root_half_bits(v, k), (total, *bounds))
    inverse = both_domains(
        lambda v, h: layer_norm.inverse_std(v, h, k),
        (total, *bounds),
        (half, 1, 31),
        vectorise=False,
    )
    gain = random.integers(-(2**14) + 1, 2**14, 1024)
    offset = random.integers(-(2**29) + 1, 2**29, 1024)
    both_domains(
        lambda *v: layer_norm.normalise(*v, k, 13, LOW, HIGH),
        (d, -2 * limit, 2 * limit),
        (inverse, 0, 2**40),
        (gain, -(2**14), 2**14),
        (offset, -(2**29), 2**29),
    )


def test_gain_and_offset_stay_in_int32() -> None:
    from ibert_tvm.relay_passes.spec.values import Ranged

    random = np.random.default_rng(2)
    affine = LayerNormAffine.from_scale(random.normal(0, 30, 512), random.normal(0, 300, 512), 1e-3)
    assert 2**13 <= np.abs(affine.gain).max() < 2**14 or np.abs(affine.offset).max() >= 2**28
    assert np.abs(affine.offset).max() < 2**29
    one = Ranged(-(2**16), 2**16)
    total = one * (2**14 - 1) + (2**29 - 1) + (1 << affine.shift)
    assert total.dtype == "int32"


def test_an_epsilon_too_large_is_refused(messages: Messages) -> None:
    with messages.raises(RangeError):
        LayerNormConstants.from_scale(1e-8, 1e-3, 768)


def test_a_beta_too_large_is_refused(messages: Messages) -> None:
    with messages.raises(RangeError):
        LayerNormAffine.from_scale(np.ones(4), np.array([0.0, 1.0, -9e5, 0.0]), 1e-3)


def test_a_weight_that_is_not_finite_is_refused(messages: Messages) -> None:
    with messages.raises(RangeError):
        LayerNormAffine.from_scale(np.array([1.0, np.nan]), np.zeros(2), 1e-3)
