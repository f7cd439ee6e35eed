"""Entities, answers and rankings against other programs' definitions."""

from __future__ import annotations

import numpy as np
import pytest

from ibert_tvm.model.tokenization import Window
from ibert_tvm.tasks.beir import DEPTH, ndcg, rankings, recall
from ibert_tvm.tasks.conll import entities_of
from ibert_tvm.tasks.squad import exact_match, normalised, predicted_answer, token_f1


def conlleval(tags: list[str]) -> set[tuple[str, int, int]]:
    """Chunks by the conditions of conlleval.pl, with `start` and `end` of a chunk apart."""
    found, start = set(), 0
    before, kind_before = "O", ""
    for place, tag in enumerate([*tags, "O"]):
        letter, _, kind = tag.partition("-")
        ends = (before, letter) in {(a, b) for a in "BI" for b in "BSO"} or before in "ES"
        starts = letter in "BS" or (before in "ESO" and letter in "EI")
        other = kind != kind_before
        if before != "O" and (ends or other):
            found.add((kind_before, start, place))
        if letter != "O" and (starts or other):
            start = place
        before, kind_before = letter, kind
    return found


def test_entities_are_those_of_conlleval() -> None:
    generator = np.random.default_rng(0)
    tags = ["O", *(f"{letter}-{kind}" for letter in "BIES" for kind in ("PER", "LOC"))]
    for _ in range(3000):
        sentence = [tags[i] for i in generator.integers(len(tags), size=6)]
        assert entities_of(sentence) == conlleval(sentence), sentence


def test_entities_of_seqevals_example() -> None:
    gold = entities_of(["O", "O", "O", "B-MISC", "I-MISC", "I-MISC", "O"])
    found = entities_of(["O", "O", "B-MISC", "I-MISC", "I-MISC", "I-MISC", "O"])
    assert (gold, found) == ({("MISC", 3, 6)}, {("MISC", 2, 6)})  # nothing in common
    assert entities_of(["B-PER", "I-PER", "O"]) == {("PER", 0, 2)}


def test_tags_of_other_schemes() -> None:
    assert entities_of(["PER", "PER", "O"]) == {("PER", 0, 2)}
    assert entities_of(["U-PER", "B-PER", "L-PER", "L-PER"]) == {
        *(("PER", 0, 1), ("PER", 1, 3), ("PER", 3, 4))
    }


# Exact match and F1 as SQuAD's evaluate-v2.0.py gives them.
ANSWERS = [
    ("The Normans!", ("Normans",), 1, 1),
    ("in the year 1066", ("1066", "year 1066 AD"), 0, 2 * 2 / 6),
    ("", ("something",), 0, 0),
    ("something", ("",), 0, 0),
    ("a an the", ("",), 1, 1),
    ("U.S. President", ("the US president", "president"), 1, 1),
    ("cat cat dog", ("cat mouse",), 0, 2 * 1 / 5),
]


@pytest.mark.parametrize(("predicted", "right", "exact", "f1"), ANSWERS)
def test_answers_are_judged_as_by_the_official_script(
    predicted: str, right: tuple[str, ...], exact: float, f1: float
) -> None:
    assert exact_match(predicted, right) == exact
    assert token_f1(predicted, right) == pytest.approx(f1)


def test_the_official_form_of_answers() -> None:
    assert normalised("  The U.S.,  an  Island--and a Theatre ") == "us islandand theatre"


def test_no_answer_is_right_where_there_is_none() -> None:
    assert exact_match("", ()) == token_f1("", ()) == 1
    assert exact_match("x", ()) == token_f1("x", ()) == 0


def window(texts: tuple[int | None, ...], first: int) -> Window:
    places = range(len(texts))
    offsets = tuple((first + 2 * i, first + 2 * i + 1) if texts[i] == 1 else (0, 0) for i in places)
    return Window(tuple(places), tuple(places), offsets, texts, texts)


def test_the_best_span_of_all_windows_is_the_answer() -> None:
    context = "a b c d e f g h"
    parts = [window((None, 0, 1, 1, 1), -4), window((None, 0, 1, 1, 1), 2)]
    logits = [np.zeros((5, 2), np.float32) for _ in parts]
    logits[1][3, 0], logits[1][4, 1] = 2, 3
    logits[0][4, 0], logits[0][2, 1] = 9, 9  # its end is before its start
    logits[0][1] = 50  # a token of the question
    assert predicted_answer(context, parts, logits, False) == "a"
    logits[0][:] = 0
    assert predicted_answer(context, parts, logits, False) == "e f"
    logits[0][0], logits[1][0] = 9, 2.6  # the least of all windows counts
    assert predicted_answer(context, parts, logits, True) == ""
    logits[1][0] = 2.4
    assert predicted_answer(context, parts, logits, True) == "e f"


def test_ndcg_is_scikit_learns() -> None:
    metrics = pytest.importorskip("sklearn.metrics", reason="the extras bench, adapters bring it")
    generator = np.random.default_rng(0)
    for _ in range(50):
        grades, scores = generator.integers(0, 3, 12), generator.random(12)
        names = [f"d{i}" for i in range(12)]
        ranking = [names[i] for i in np.argsort(-scores)]
        judged = dict(zip(names, grades.tolist(), strict=True))
        expected = metrics.ndcg_score([grades], [scores], k=10)
        assert ndcg(ranking, judged, 10) == pytest.approx(expected)


def test_recall_counts_relevant_documents_only() -> None:
    grades = {"a": 2, "b": 1, "c": 0, "d": 1}
    assert recall(["c", "b", "x"], grades, 2) == pytest.approx(1 / 3)
    assert recall(["c"], {"c": 0}, 2) == ndcg(["c"], {"c": 0}, 2) == 0


def test_rankings_are_by_cosine_then_by_falling_identifier() -> None:
    documents = np.array([[1, 0], [2, 0], [0, 3], [1, 1], [9, 0]], np.float32)
    names = ["b", "d", "c", "a", "q"]
    (found,) = rankings(np.array([[5, 0]], np.float32), documents, ["q"], names)
    assert found == ["d", "b", "a", "c"]  # q is the query itself
    documents[3] = [3, 3]
    (found,) = rankings(np.array([[5, 0]], np.float32), documents, ["q"], names, "dot")
    assert found == ["a", "d", "b", "c"]


def test_rankings_of_many_are_those_of_a_full_sort() -> None:
    generator = np.random.default_rng(3)
    documents = generator.integers(-2, 3, (300, 3)).astype(np.float32) + 0.5  # many ties
    queries = generator.normal(size=(70, 3)).astype(np.float32)
    names = [f"d{i}" for i in generator.permutation(300)]
    found = list(rankings(queries, documents, [f"q{i}" for i in range(70)], names))
    units = [v / np.linalg.norm(v, axis=1, keepdims=True) for v in (queries, documents)]
    scores = (units[0].astype(np.float32) @ units[1].astype(np.float32).T).astype(float)
    for row, ranking in zip(scores, found, strict=True):
        by_name = dict(zip(names, row, strict=True))
        expected = sorted(row, reverse=True)[:DEPTH]
        np.testing.assert_allclose([by_name[name] for name in ranking], expected, atol=1e-5)
