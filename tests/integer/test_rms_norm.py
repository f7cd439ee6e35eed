"""RMSNorm in integers: errors against float64, and the bound that its intervals rely on."""

from __future__ import annotations

import numpy as np
import pytest

from ibert_tvm.relay_passes.integer.arrays import NumpyNumbers
from ibert_tvm.relay_passes.integer.evaluate import run_whole
from ibert_tvm.relay_passes.integer.operators.norms import RmsNorm, RmsNormShort, ScaledNorm
from ibert_tvm.relay_passes.spec import short_layer_norm as norm
from ibert_tvm.relay_passes.spec.layer_norm import LayerNormAffine, LayerNormConstants
from ibert_tvm.relay_passes.spec.short_layer_norm import INPUT_LIMIT, ShortLayerNorm

CHANNELS, OUT = 768, 8 / 32767
FORMS = ("short", "wide", "paper")


def operator(form: str, scale: float, epsilon: float, shift: int, channels: int) -> ScaledNorm:
    stored = {"shift": shift, "low": -32767, "high": 32767, "dtype": "int16"}
    if form == "short":
        return RmsNormShort("n", ShortLayerNorm.from_scale(scale, epsilon, channels), **stored)
    bits = 31 if form == "paper" else 40
    constants = LayerNormConstants.from_scale(scale, epsilon, channels, reciprocal_bits=bits)
    return RmsNorm("n", constants, **stored)


def run(form: str, x: np.ndarray, gamma: np.ndarray, scale: float, epsilon: float) -> np.ndarray:
    affine = LayerNormAffine.from_scale(gamma, np.zeros_like(gamma), OUT)
    record = operator(form, scale, epsilon, affine.shift, gamma.size)
    operands = {"x": x.astype(np.int64), "gain": affine.gain}
    return run_whole(record, operands, {"x": "int16", "gain": "int32"}, NumpyNumbers()) * OUT


def reference(x: np.ndarray, gamma: np.ndarray, epsilon: float) -> np.ndarray:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * gamma


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("spread", [4000, 300, 100])
def test_error_against_float64(form: str, spread: int) -> None:
    # No mean is rounded, so that small rows lose nothing; in `paper` they do to the reciprocal.
    random = np.random.default_rng(spread)
    x = np.clip(np.round(random.normal(0, spread, (64, CHANNELS))), -INPUT_LIMIT, INPUT_LIMIT)
    x += spread // 2  # a mean far from 0 is kept
    x = np.clip(x, -INPUT_LIMIT, INPUT_LIMIT)
    gamma = random.normal(1, 0.5, CHANNELS)
    gamma[:3] = [-0.7, 0.0, 1e-9]
    expected = np.clip(reference(x * 1e-3, gamma, 1e-12), -8, 8)
    error = np.abs(run(form, x, gamma, 1e-3, 1e-12) - expected)
    assert error.max() < (2.5e-3 if form == "paper" else 1.2e-3)
    assert np.sqrt((error**2).mean()) < (3e-4 if form == "paper" else 2.2e-4)


@pytest.mark.parametrize("form", FORMS)
def test_a_row_of_zeros_gives_zero(form: str) -> None:
    assert not run(form, np.zeros((2, 8)), np.ones(8), 1e-3, 1e-12).any()


@pytest.mark.parametrize("form", FORMS)
def test_epsilon_counts_where_the_row_is_small(form: str) -> None:
    x = np.random.default_rng(0).integers(-30, 31, (8, 64))
    expected = reference(x * 1e-4, np.ones(64), 1e-5)
    error = np.abs(run(form, x, np.ones(64), 1e-4, 1e-5) - expected).max()
    assert error < (4e-3 if form == "paper" else 8e-4)
    assert np.abs(expected).max() < 1.2, "without epsilon it would be about 1.7"


@pytest.mark.parametrize("channels", [1, 2, 33, 768])
def test_no_entry_exceeds_the_root(channels: int) -> None:
    k = ShortLayerNorm.from_scale(1.0, 4 / channels, channels)
    rows = []
    for entry in (1, 2, 3, 127, 8191, INPUT_LIMIT):
        for rest in (0, 1, entry):
            row = np.full(channels, rest)
            row[-1] = entry
            rows += [row, -row]
    x = np.array(rows)
    total = norm.square(x).sum(-1, keepdims=True)
    s = norm.root(total, norm.root_half_bits(total, k), k)
    assert (np.abs(x) << k.root_fraction_bits <= s).all()
    bits = norm.root_bits(s, k)
    n = (x * norm.reciprocal(s, bits)) >> (bits - k.root_fraction_bits - 1)
    assert np.abs(n).max() <= 2**norm.NORMALISED_BITS
