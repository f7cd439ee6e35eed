"""What poolings, joined channels, unit length and the logarithm compute, against float64."""

from __future__ import annotations

import numpy as np
import pytest

from ibert_tvm.relay_passes.canonical.operators.channels import Concatenate
from ibert_tvm.relay_passes.canonical.operators.functions import Log1pRelu
from ibert_tvm.relay_passes.canonical.operators.norms import L2Norm
from ibert_tvm.relay_passes.canonical.operators.pools import (
    AttentionPool,
    LastToken,
    MaxPool,
    SqrtMeanPool,
    WeightedMeanPool,
)

X = np.random.default_rng(0).normal(-3, 2, (4, 5, 6))
MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [0, 0, 1, 1, 0], [0, 0, 0, 0, 0]])
WEIGHTS = {
    WeightedMeanPool: lambda mask: mask * np.arange(1, 6) / max((mask * np.arange(1, 6)).sum(), 1),
    SqrtMeanPool: lambda mask: mask / np.sqrt(max(mask.sum(), 1)),
    LastToken: lambda mask: mask * (np.arange(5) == np.flatnonzero(mask).max(initial=0)),
}


@pytest.mark.parametrize("operator", WEIGHTS)
def test_sums_of_weighted_tokens(operator) -> None:
    given = X.astype(np.float32)
    wanted = np.stack([WEIGHTS[operator](mask) @ x for mask, x in zip(MASK, X, strict=True)])
    np.testing.assert_allclose(operator("y").evaluate(given, MASK), wanted, atol=2e-6)
    np.testing.assert_array_equal(given, X.astype(np.float32))
    if operator is not LastToken:
        every = np.stack([WEIGHTS[operator](np.ones(5)) @ x for x in X])
        np.testing.assert_allclose(operator("y").evaluate(given), every, atol=2e-6)


def test_the_maximum_of_the_tokens_that_count() -> None:
    given = X.astype(np.float32)
    pairs = zip(MASK, given, strict=True)
    wanted = [x[mask != 0].max(0) if mask.any() else np.zeros(6) for mask, x in pairs]
    np.testing.assert_array_equal(MaxPool("y").evaluate(given, MASK), wanted)
    np.testing.assert_array_equal(MaxPool("y").evaluate(given), given.max(1))


def test_what_a_learned_query_sees() -> None:
    scores, v = X[:, :, :2].astype(np.float32) / 4, X.astype(np.float32)
    found = AttentionPool("y").evaluate(scores, v, MASK)
    for row, (mask, s, x) in enumerate(zip(MASK, scores, v, strict=True)):
        weights = np.exp(s) * (mask != 0)[:, None]
        weights /= np.maximum(weights.sum(0), 1e-9)
        for head in range(2):
            wanted = weights[:, head] @ x[:, 3 * head : 3 * head + 3]
            np.testing.assert_allclose(found[row, 3 * head : 3 * head + 3], wanted, atol=1e-4)
    every = AttentionPool("y").evaluate(scores, v, np.ones_like(MASK))
    np.testing.assert_array_equal(AttentionPool("y").evaluate(scores, v), every)


def test_unit_length_joining_and_the_logarithm() -> None:
    given = X.astype(np.float32)
    given[0, 0] = 0
    with np.errstate(all="raise"):
        found = L2Norm("y").evaluate(given)
    assert not found[0, 0].any()
    np.testing.assert_allclose(np.linalg.norm(found, axis=-1).reshape(-1)[1:], 1, atol=1e-6)
    joined = Concatenate("y").evaluate(given[0], given[1])
    np.testing.assert_array_equal(joined, np.concatenate([given[0], given[1]], 1))
    np.testing.assert_allclose(
        Log1pRelu("y").evaluate(given), np.log1p(np.maximum(given, 0)), atol=1e-6
    )
