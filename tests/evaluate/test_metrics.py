"""The metrics, against hand-made cases and scipy-free definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ibert_tvm.evaluation.agreements import Agreement
from ibert_tvm.evaluation.metrics import (
    RunningSimilarity,
    mean_pool,
    nearest_neighbours,
    pairwise_cosine,
    row_cosine,
    spearman,
)


def test_row_cosine_of_equal_opposite_orthogonal_and_zero_rows() -> None:
    a = np.array([[1, 0], [1, 1], [1, 0], [0, 0], [0, 0]])
    b = np.array([[3, 0], [-2, -2], [0, 5], [0, 0], [1, 0]])
    np.testing.assert_allclose(row_cosine(a, b), [1, -1, 0, 1, 0], atol=1e-15)


def test_spearman_sees_order_only() -> None:
    values = np.array([0.1, 0.5, 0.2, 0.9])
    assert spearman(values, np.exp(10 * values)) == 1
    assert spearman(values, -values) == -1


def test_spearman_with_ties_is_the_textbook_value() -> None:
    # Ranks 0, 1.5, 1.5, 3 against 0, 1, 2, 3: Pearson's formula gives 4.5 / sqrt(4.5 * 5).
    expected = 4.5 / math.sqrt(4.5 * 5)
    value = spearman(np.array([1, 2, 2, 3]), np.array([1, 2, 3, 4]))
    assert value == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("values", [[1.0], [2.0, 2.0, 2.0]])
def test_spearman_is_undefined_without_an_order(values: list[float]) -> None:
    assert math.isnan(spearman(np.array(values), np.array(values)))


def test_nearest_neighbour_is_another_row() -> None:
    vectors = np.array([[1, 0], [1, 0.1], [0, 1], [-0.1, 1]])
    np.testing.assert_array_equal(nearest_neighbours(pairwise_cosine(vectors)), [1, 0, 3, 2])


def test_mean_pool_ignores_padding_and_survives_an_empty_row() -> None:
    values = np.array([[[1, 2], [3, 4], [99, 99]], [[5, 5], [5, 5], [5, 5]]])
    mask = np.array([[1, 1, 0], [0, 0, 0]])
    np.testing.assert_array_equal(mean_pool(values, mask), [[2, 3], [0, 0]])


def test_agreement_of_a_model_with_itself() -> None:
    vectors = np.random.default_rng(0).normal(size=(6, 4))
    same = Agreement.of(vectors, vectors)
    assert same.cosine_mean == pytest.approx(1, abs=1e-12)
    assert same.cosine_min == pytest.approx(1, abs=1e-12)
    assert same.spearman == pytest.approx(1, abs=1e-12)
    assert (same.max_abs_error, same.same_nearest_neighbour) == (0, 1)


def test_agreement_reports_the_worst_text() -> None:
    vectors = np.eye(4)
    changed = vectors.copy()
    changed[2] = [0, 0, 3, 4]
    agreement = Agreement.of(vectors, changed)
    assert agreement.cosine_min == pytest.approx(0.6)
    assert agreement.cosine_mean == pytest.approx(0.9)
    assert agreement.max_abs_error == 4


def test_two_texts_have_no_ranking() -> None:
    agreement = Agreement.of(np.eye(2), np.eye(2))
    assert (agreement.spearman, agreement.same_nearest_neighbour) == (None, None)


@given(st.integers(0, 2**32 - 1), st.integers(1, 5))
def test_running_similarity_does_not_depend_on_the_parts(seed: int, parts: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(2, 30))
    running = RunningSimilarity()
    for x, y in zip(np.array_split(a, parts), np.array_split(b, parts), strict=True):
        running.add(x, y)
    assert running.cosine == pytest.approx(float(row_cosine(a[None], b[None])[0]), abs=1e-12)
    error = float(np.linalg.norm(a - b) / np.linalg.norm(a))
    assert running.relative_error == pytest.approx(error, rel=1e-12)


def test_running_similarity_of_zeros() -> None:
    running = RunningSimilarity()
    running.add(np.zeros(3), np.zeros(3))
    assert (running.cosine, running.relative_error) == (1, 0)
    running.add(np.zeros(3), np.ones(3))
    assert (running.cosine, running.relative_error) == (0, None)
