"""LayerNorm and RMSNorm are recognised by their values, and nothing else is."""

from __future__ import annotations

import numpy as np
import pytest

from ibert_tvm.frontend.canonicalise.rules_rows import fit_norm, row_values


def layer_norm(x, gamma, beta, epsilon):
    centred = x - x.mean(axis=1, keepdims=True)
    return gamma * centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + epsilon) + beta


@pytest.mark.parametrize("channels", [2, 3, 32, 768])
@pytest.mark.parametrize("epsilon", [1e-12, 1e-7, 1e-6, 1e-5, 1e-3])
@pytest.mark.parametrize("kind", ["layer_norm", "rms_norm"])
def test_parameters_are_found(kind, channels, epsilon):
    random, x = np.random.default_rng(channels), row_values(channels)
    gamma, beta = random.normal(1, 0.5, channels), random.normal(0, 2, channels)
    gamma[0] = 0.0  # pruned channels
    if kind == "layer_norm":
        samples = layer_norm(x, gamma, beta, epsilon)
    else:
        samples = gamma * x / np.sqrt((x**2).mean(axis=1, keepdims=True) + epsilon)
    fitted = fit_norm(samples, channels)
    assert fitted is not None and fitted.kind == kind
    assert fitted.epsilon == pytest.approx(float(np.float32(epsilon)), rel=1e-5, abs=1e-15)
    np.testing.assert_allclose(fitted.gamma, gamma, rtol=1e-6, atol=1e-9)
    if kind == "layer_norm":
        np.testing.assert_allclose(fitted.beta, beta, rtol=1e-9, atol=1e-9)
    else:
        assert fitted.beta is None


def test_constants_in_float32_do_not_matter():
    """A mean by a sum and a rounded 1/C, as some exporters write it."""
    x = row_values(24)
    third = float(np.float32(1 / 24))
    centred = x - x.sum(axis=1, keepdims=True) * third
    spread = (centred**2).sum(axis=1, keepdims=True) * third
    samples = centred / np.sqrt(spread + float(np.float32(1e-5)))
    fitted = fit_norm(samples, 24)
    assert fitted is not None
    np.testing.assert_allclose(fitted.gamma, 1.0, rtol=1e-5)
    assert fitted.epsilon == pytest.approx(1e-5, rel=1e-3)


def others(x):
    centred = x - x.mean(axis=1, keepdims=True)
    variance = (centred**2).mean(axis=1, keepdims=True)
    return {
        "identity": x,
        "centred": centred,
        "shifted root mean square": x / np.sqrt((x**2).mean(axis=1, keepdims=True) + 1e-5) + 1,
        "sum of squares": x / np.sqrt((x**2).sum(axis=1, keepdims=True) + 1e-5) * x,
        "variance": centred / (variance + 1e-5),
        "largest": x / (np.abs(x).max(axis=1, keepdims=True) + 1e-5),
        "residual": x + centred / np.sqrt(variance + 1e-5),
        "epsilon outside": centred / (np.sqrt(variance) + 1e-2),
        "not a number": x * np.nan,
        "constant": np.ones_like(x),
        "reduced": x[:, :1],
    }


OTHERS = others(row_values(24))


@pytest.mark.parametrize("name", OTHERS)
def test_other_functions_are_none(name):
    assert fit_norm(OTHERS[name], 24) is None
