"""LayerNorm and RMSNorm are recognised by their values, and nothing else is."""

from __future__ import annotations

import numpy as np
import pytest

from ibert_tvm.frontend.canonicalise.rows import fit_norm, row_values


def layer_norm(x, gamma, beta, epsilon):
    centred = x - x.mean(axis=1, keepdims=True)
    return gamma * centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + epsilon) + beta


@pytest.mark.parametrize("channels", [2, 3, 32, 768])
@pytest.mark.parametrize("epsilon", [1e-12, 1e-7, 1e-6, 1e-5, 1e-3])
def test_parameters_are_found(channels, epsilon):
    random = np.random.default_rng(channels)
    gamma, beta = random.normal(1, 0.5, channels), random.normal(0, 2, channels)
    gamma[0] = 0.0  # pruned channels
    samples = layer_norm(row_values(channels), gamma, beta, epsilon)
    fitted = fit_norm(samples, channels)
    assert fitted is not None and fitted.beta is not None
    assert fitted.kind == "layer_norm"
    assert fitted.epsilon == pytest.approx(float(np.float32(epsilon)), rel=1e-5, abs=1e-15)
    np.testing.assert_allclose(fitted.gamma, gamma, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(fitted.beta, beta, rtol=1e-9, atol=1e-9)


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


@pytest.mark.parametrize("channels", [2, 3, 32, 768])
@pytest.mark.parametrize("epsilon", [1e-12, 1e-6, 1e-5, 1e-3])
def test_parameters_of_an_rms_norm_are_found(channels, epsilon):
    gamma = np.random.default_rng(channels).normal(1, 0.5, channels)
    gamma[0] = 0.0
    x = row_values(channels)
    samples = gamma * x / np.sqrt((x**2).mean(axis=1, keepdims=True) + epsilon)
    fitted = fit_norm(samples, channels)
    assert fitted is not None and fitted.beta is None
    assert fitted.kind == "rms_norm"
    assert fitted.epsilon == pytest.approx(epsilon, rel=1e-5, abs=1e-15)
    np.testing.assert_allclose(fitted.gamma, gamma, rtol=1e-6, atol=1e-9)


def other(name, x):
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
    }[name]


@pytest.mark.parametrize(
    "name",
    [
        "identity",
        "centred",
        "shifted root mean square",
        "sum of squares",
        "variance",
        "largest",
        "residual",
        "epsilon outside",
        "not a number",
        "constant",
    ],
)
def test_other_functions_are_none(name):
    assert fit_norm(other(name, row_values(24)), 24) is None


def test_a_reduced_function_is_none():
    assert fit_norm(row_values(24)[:, :1], 24) is None
