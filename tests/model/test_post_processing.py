"""What follows the network: the record and its functions."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from ibert_tvm.common.errors import DocumentError
from ibert_tvm.model.model_info import ModelInfo, PostProcessing
from ibert_tvm.model.scores import LATE, SIMILARITIES, ranked_classes, ranked_documents
from tests.extras import needs
from tests.frontend.test_model_info import INFO
from tests.snapshots import Messages

RECORD = PostProcessing("none", "tanh", "dot", 3, 2, {"yes": 0.5})
RANDOM = np.random.default_rng(3).normal(size=(2, 4, 6)).astype(np.float32)


def test_the_record_travels_with_the_model() -> None:
    document = json.loads(json.dumps({**INFO.to_json(), "post_processing": RECORD.to_json()}))
    assert ModelInfo.from_json(document).post_processing == RECORD
    assert "post_processing" not in INFO.to_json()


@pytest.mark.parametrize(
    ("problem", "function"),
    [
        ("multi_label_classification", "sigmoid"),
        ("regression", "none"),
        ("single_label_classification", None),
    ],
)
def test_artefacts_from_before_have_a_problem_type(problem: str, function: str | None) -> None:
    older = ModelInfo.from_json({**INFO.to_json(), "problem_type": problem})
    assert older.post_processing == PostProcessing(classes=function)


@pytest.mark.parametrize(
    "change",
    [
        {"classes": "gelu"},
        {"pairs": 1},
        {"similarity": "closeness"},
        {"dimensions": 0},
        {"active": 1.5},
        {"thresholds": {"yes": "much"}},
    ],
    ids=str,
)
def test_bad_records(change: dict[str, Any], messages: Messages) -> None:
    with messages.raises((DocumentError, ValueError)):
        ModelInfo.from_json({**INFO.to_json(), "post_processing": change})


def test_classes_below_their_threshold_are_left_out() -> None:
    logits, labels = np.float32([[2, 1, 3], [-2, -1, -3]]), ["a", "b", "c"]
    assert ranked_classes(logits, labels, None, "none", 1.0) == [
        [{"label": "c", "score": 3.0}, {"label": "a", "score": 2.0}, {"label": "b", "score": 1.0}],
        [],
    ]
    (first, second) = ranked_classes(logits, labels, 1, "none", {"a": -2.0, "c": 4.0})
    assert [first, second] == [[{"label": "a", "score": 2.0}], [{"label": "b", "score": -1.0}]]


def test_equal_scores_keep_the_order_of_the_documents() -> None:
    logits = np.float32([[60], [-1], [50], [90]])  # one sigmoid in float32, where three are 1
    assert [place for place, _ in ranked_documents(logits)] == [0, 2, 3, 1]
    assert ranked_documents(logits, "none", 2) == [(3, 90.0), (0, 60.0)]


def test_vectors_are_shortened() -> None:
    vectors = np.float32([[1, -5, 3, 9], [0, 2, -1, 9]])
    largest = PostProcessing(dimensions=3, active=2)
    assert largest.finished(vectors).tolist() == [[0, -5, 3], [0, 2, -1]]
    assert largest.finished(vectors, 1).tolist() == [[1], [0]]
    assert PostProcessing(active=9).finished(vectors).tolist() == vectors.tolist()


@pytest.mark.slow  # importing the package takes seconds
@pytest.mark.parametrize("name", SIMILARITIES)
def test_similarities_are_those_of_sentence_transformers(name: str) -> None:
    needs("sentence_transformers")
    from sentence_transformers import SimilarityFunction

    sides: Any = RANDOM
    if name in LATE:
        sides = [[RANDOM[0], RANDOM[1][:2]], [RANDOM[1], RANDOM[0][1:]]]
    wanted = SimilarityFunction.to_similarity_fn(name)(*sides)
    np.testing.assert_allclose(SIMILARITIES[name](*sides), wanted, rtol=0, atol=1e-5)
