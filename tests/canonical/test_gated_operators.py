"""What gates and RMSNorm compute, against float64."""

from __future__ import annotations

import numpy as np
import pytest

from ibert_tvm.relay_passes.canonical import CanonicalError
from ibert_tvm.relay_passes.canonical.operators.functions import Sigmoid, Silu
from ibert_tvm.relay_passes.canonical.operators.norms import RmsNorm
from ibert_tvm.relay_passes.canonical.operators.sums import Multiply

X = np.random.default_rng(0).normal(0, 3, (2, 5, 24))


@pytest.mark.parametrize(
    ("operator", "expected"),
    [
        (Sigmoid("y"), 1 / (1 + np.exp(-X))),
        (Silu("y"), X / (1 + np.exp(-X))),
        (Silu("y", 1.702), X / (1 + np.exp(-1.702 * X))),
    ],
)
def test_functions(operator, expected) -> None:
    given = X.astype(np.float32)
    np.testing.assert_allclose(operator.evaluate(given), expected, atol=2e-6)
    np.testing.assert_array_equal(given, X.astype(np.float32))


def test_far_out_nothing_overflows() -> None:
    x = np.array([-1e4, 1e4], np.float32)
    with np.errstate(all="raise"):
        np.testing.assert_array_equal(Sigmoid("y").evaluate(x), [0, 1])
        np.testing.assert_array_equal(Silu("y", 1.702).evaluate(x), [0, 1e4])


def test_products_and_norms() -> None:
    a, gamma = X.astype(np.float32), np.linspace(-1, 2, 24).astype(np.float32)
    np.testing.assert_array_equal(Multiply("y").evaluate(a, a[::-1]), a * a[::-1])
    expected = X / np.sqrt((X**2).mean(-1, keepdims=True) + 0.5) * gamma
    np.testing.assert_allclose(RmsNorm("y", 0.5).evaluate(a, gamma), expected, atol=2e-6)


@pytest.mark.parametrize("beta", [0.0, -1.0, float("inf"), float("nan")])
def test_a_beta_that_is_none_is_refused(beta: float, messages) -> None:
    with messages.raises(CanonicalError):
        Silu("y", beta)
