"""Metrics against scikit-learn and SciPy, of samples and of resamples."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

from ibert_tvm.tasks import measures
from ibert_tvm.tasks.compare import difference_intervals

SAMPLES = 60
RANDOM = np.random.default_rng(0)
GOLD = RANDOM.integers(0, 3, SAMPLES)
GUESS = np.where(RANDOM.random(SAMPLES) < 0.7, GOLD, RANDOM.integers(0, 4, SAMPLES))
X = RANDOM.normal(size=SAMPLES).round(1) + 1e6  # with ties, far from 0
Y = (X - 1e6 + RANDOM.normal(size=SAMPLES)).round(1)


def drawn(count: int) -> np.ndarray:
    return np.random.default_rng(1).integers(SAMPLES, size=(count, SAMPLES))


def counts_of(rows: np.ndarray) -> np.ndarray:
    return np.stack([np.bincount(row, minlength=SAMPLES) for row in rows], axis=1).astype(float)


def sklearn_metric(name: str, **options):
    metrics = pytest.importorskip("sklearn.metrics", reason="the extras bench, adapters bring it")
    return lambda a, b: getattr(metrics, name)(a, b, **options)


CASES = {
    "accuracy": (measures.accuracy, lambda: sklearn_metric("accuracy_score")),
    "macro F1": (
        measures.macro_f1,
        lambda: sklearn_metric("f1_score", average="macro", zero_division=0),
    ),
    "Matthews": (measures.matthews, lambda: sklearn_metric("matthews_corrcoef")),
    "F1": (
        lambda a, b: measures.f1(a, b, 2),
        lambda: sklearn_metric("f1_score", labels=[2], average="micro", zero_division=0),
    ),
}
FIGURES = {
    "Pearson": (measures.pearson, lambda a, b: scipy.stats.pearsonr(a, b)[0]),
    "Spearman": (measures.spearman, lambda a, b: scipy.stats.spearmanr(a, b)[0]),
}


@pytest.mark.parametrize("name", CASES)
def test_metrics_of_classes_are_scikit_learns(name: str) -> None:
    ours, make = CASES[name]
    theirs = make()
    measure = ours(GOLD, GUESS)
    assert (measure.name, measure.samples) == (name, SAMPLES)
    assert measure.value == pytest.approx(100 * theirs(GOLD, GUESS), abs=1e-10)
    rows = drawn(20)
    expected = [100 * theirs(GOLD[row], GUESS[row]) for row in rows]
    np.testing.assert_allclose(measure.values(counts_of(rows)), expected, atol=1e-10)


@pytest.mark.parametrize("name", FIGURES)
def test_correlations_are_scipys_and_resamples_are_ranked_anew(name: str) -> None:
    ours, theirs = FIGURES[name]
    measure = ours(X, Y)
    assert measure.value == pytest.approx(100 * theirs(X, Y), abs=1e-6)
    rows = drawn(20)
    expected = [100 * theirs(X[row], Y[row]) for row in rows]
    np.testing.assert_allclose(measure.values(counts_of(rows)), expected, atol=1e-6)


@pytest.mark.parametrize("name", FIGURES)
def test_a_constant_has_no_correlation(name: str) -> None:
    ours, _ = FIGURES[name]
    assert np.isnan(ours(np.ones(5), np.arange(5)).value)
    assert np.isnan(ours(np.arange(5), np.full(5, 0.1)).value)


def test_matthews_and_f1_of_one_guess_are_zero() -> None:
    assert measures.matthews([0, 1, 1], [1, 1, 1]).value == 0
    assert measures.f1([0, 0], [0, 0], 1).value == 0


def test_micro_f1_adds_up_before_it_divides() -> None:
    assert measures.micro_f1([1, 0], [1, 3], [2, 0]).value == pytest.approx(100 * 2 / 6)


def test_interval_is_that_of_a_plain_bootstrap() -> None:
    """Of accuracies, by NumPy's own multinomial draws of the four kinds of samples."""
    first, second = (RANDOM.random(400) < share for share in (0.8, 0.75))
    pair = (measures.mean("a", first), measures.mean("a", second))
    low, high = difference_intervals([pair])[0]
    steps = second.astype(int) - first.astype(int)
    shares = [(steps == step).mean() for step in (-1, 0, 1)]
    draws = np.random.default_rng(5).multinomial(400, shares, size=200_000) / 4
    expected = np.quantile(draws[:, 2] - draws[:, 0], [0.025, 0.975])
    np.testing.assert_allclose([low, high], expected, atol=0.35)
    assert low < 100 * (second.mean() - first.mean()) < high


def test_interval_covers_the_truth_as_often_as_it_says() -> None:
    generator = np.random.default_rng(2)
    covered = 0
    for _ in range(200):
        first, second = (generator.random(150) < share for share in (0.7, 0.8))
        pair = (measures.mean("a", first), measures.mean("a", second))
        low, high = difference_intervals([pair], resamples=500)[0]
        covered += low <= 10 <= high
    assert 180 <= covered <= 199  # 190 are expected, with a spread of 3


def test_equal_models_differ_by_nothing_and_draws_repeat() -> None:
    a, b = measures.spearman(X, Y), measures.spearman(X, Y + RANDOM.normal(size=SAMPLES))
    assert difference_intervals([(a, a)], resamples=200) == [(0.0, 0.0)]
    assert difference_intervals([(a, b)]) == difference_intervals([(a, b)])
    assert difference_intervals([(a, b)]) != difference_intervals([(a, b)], seed=1)


def test_what_has_no_value_has_no_interval() -> None:
    constant = measures.pearson(np.ones(4), np.arange(4))
    assert difference_intervals([(constant, constant)], resamples=50) == [None]
