"""What two models are compared by follows from what their output is used for."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ibert_tvm.cli import eval as eval_command
from ibert_tvm.evaluation.agreements import (
    COMPARISONS,
    GRADES,
    Agreement,
    LabelAgreement,
    RankAgreement,
    SpanAgreement,
    TagAgreement,
    comparison_of,
    figures,
    shown,
    verdict,
)
from ibert_tvm.evaluation.metrics import text_errors
from ibert_tvm.model.heads import KINDS
from ibert_tvm.model.model_info import ModelInfo, OutputInfo, PostProcessing
from ibert_tvm.model.tokenization import Window
from tests.artefact.conftest import make_quantized
from tests.runtime.conftest import TinyModel


def info(kind: str, **changes: Any) -> ModelInfo:
    return replace(TinyModel().info, outputs=(OutputInfo("output", "output", kind),), **changes)


def window(*texts: int | None, words: tuple[int | None, ...] | None = None) -> Window:
    """A window whose tokens are one character each."""
    count = len(texts)
    offsets = tuple((place, place + 1) for place in range(count))
    return Window((1,) * count, (0,) * count, offsets, texts, words or tuple(range(count)))


def compare(about: ModelInfo, *texts: tuple[Any, ...]) -> Any:
    comparison = comparison_of(about)
    found = [tuple(np.asarray(x, np.float64) for x in text[:2]) + text[2:] for text in texts]
    known = found if comparison.of_text is None else [comparison.of_text(*text) for text in found]
    return comparison.agreement(known, about)


def test_every_kind_of_output_is_compared_in_one_way() -> None:
    assert {kind.compared for kind in KINDS.values()} == set(COMPARISONS)
    vectors = np.eye(3)
    same = compare(info("embedding"), *zip(vectors, vectors, strict=True))
    assert same == Agreement.of(vectors, vectors)


def test_classes_of_texts() -> None:
    logits = [[2.0, 0.0], [0.0, 2.0], [0.1, 0.0]], [[2.0, 0.0], [0.0, 2.0], [0.0, 0.1]]
    found = compare(info("logits"), *zip(*logits, strict=True))
    assert isinstance(found, LabelAgreement)
    assert found.same_label == pytest.approx(2 / 3)
    flip = 2 / (1 + np.exp(-0.1)) - 1
    assert found.score_difference_max == pytest.approx(flip)
    assert found.score_difference_mean == pytest.approx(flip / 3)
    assert found.max_abs_error == pytest.approx(0.1)


def test_several_labels_at_once_are_decided_one_by_one() -> None:
    about = info("logits", post_processing=PostProcessing(classes="sigmoid"))
    found = compare(about, ([3.0, -0.1, 0.2], [2.0, 0.1, 0.1]), ([-1.0, -1.0, 5.0],) * 2)
    assert found.same_label == pytest.approx(5 / 6)  # the class with the best score is the same
    assert found.max_abs_error == pytest.approx(1)


@pytest.mark.parametrize("kind", ["one score", "regression of two"])
def test_scores_are_compared_by_the_order_of_texts(kind: str) -> None:
    reference = np.array([[0.0, 1.0], [1.0, 2.0], [2.0, 3.0], [3.0, 4.0]])
    candidate = reference + np.array([[0.0, 0.0], [1.2, 0.0], [0.0, 0.0], [0.0, 0.0]])
    about = info("logits", post_processing=PostProcessing(classes="none"))
    if kind == "one score":
        about, reference, candidate = info("logits"), reference[:, :1], candidate[:, :1]
    found = compare(about, *zip(reference, candidate, strict=True))
    assert isinstance(found, RankAgreement)
    assert found.rank_correlation == pytest.approx(0.8)  # 1 and 2 change places
    assert found.max_abs_error == pytest.approx(1.2)
    assert compare(about, (reference[0], candidate[0])).rank_correlation is None


def test_tags_of_tokens_without_the_special_ones() -> None:
    names = {0: "O", 1: "B-LOC"}
    places = window(None, 0, 0, 0, None)
    a = [[9.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [9.0, 0.0]]
    b = [[0.0, 9.0], [1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 9.0]]
    found = compare(info("token_logits", id2label=names), (a, b, places))
    assert isinstance(found, TagAgreement)
    assert found.same_tag == pytest.approx(2 / 3)
    assert found.tags == {"O": 1, "B-LOC": 0.5}
    assert found.max_abs_error == 1
    rows = {title: (value, grade) for title, value, grade in shown(found)}
    assert rows["same tag"] == ("66.7%", "poor") and rows["same tag, B-LOC"] == ("50.0%", "")
    assert rows["all in all poor"][0] == GRADES["poor"]
    none = compare(info("token_logits", id2label=names), (a[:1], b[:1], window(None)))
    assert (none.same_tag, none.tags) == (None, {})


def test_answers_lie_in_the_context_or_in_a_text_alone() -> None:
    pair = window(None, 0, 0, None, 1, 1, None)
    a, b = np.zeros((7, 2)), np.zeros((7, 2))
    a[1] = b[2] = 9.0  # the question is no answer
    a[4, 0] = a[4, 1] = b[4, 0] = b[4, 1] = 3.0
    found = compare(info("span_logits"), (a, b, pair))
    assert isinstance(found, SpanAgreement)
    assert (found.same_answer, found.score_difference_max) == (1, 0)
    assert found.max_abs_error == 9
    alone = window(None, 0, 0, 0, 0, 0, None)
    assert compare(info("span_logits"), (a, b, alone), (a, a, alone)).same_answer == 0.5
    assert compare(info("span_logits"), (a[:1], b[:1], window(None))).same_answer is None


def test_figures_are_those_of_the_document() -> None:
    found = TagAgreement(1.0, {"O": 1.0, "a/b": 0.5}, 0.1, 0.2)
    keys = [figure.key for figure in figures(asdict(found))]
    assert keys == [
        ("same_tag",), ("score_difference_max",), ("max_abs_error",), ("tags", "O"), ("tags", "a/b")
    ]  # fmt: skip
    assert figures({"texts": 3, "spearman": None}) == []


def test_one_number_of_every_text() -> None:
    rng = np.random.default_rng(0)
    a = rng.normal(size=(50, 4))
    b = a + 1e-3 * rng.normal(size=a.shape)
    np.testing.assert_allclose(text_errors(a, a), 0, atol=1e-15)
    cosine = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    np.testing.assert_allclose(text_errors(a, b), 1 - cosine, atol=1e-15)
    # One channel: a cosine would be 1 whatever the scores are.
    scores, others = a[:, :1], 1.1 * a[:, :1]
    assert float(text_errors(scores, others).mean()) == pytest.approx(0.005)
    np.testing.assert_array_equal(text_errors(0 * scores, 0 * scores), 0)


@pytest.mark.parametrize(
    ("head", "labels", "given"),
    [
        ("sequence_classification", ("score",), [("one", "two"), ("two", "one")]),
        ("sequence_classification", ("no", "yes"), ["one", "two"]),
    ],
)
def test_models_of_pairs_are_compared_on_pairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, head: str, labels: tuple[str, ...], given: list
) -> None:
    class Seen(Exception):
        pass

    def fidelity(_candidate: object, _reference: object, texts: list, **_: object) -> None:
        raise Seen(texts)

    monkeypatch.setattr("ibert_tvm.evaluation.evaluate.fidelity", fidelity)
    quantized = make_quantized()
    info = replace(quantized.info, head=head, id2label=dict(enumerate(labels)))
    folder = replace(quantized, info=info).save(tmp_path / "model.ibert")
    (tmp_path / "texts.txt").write_text("one\ntwo\n")
    with pytest.raises(Seen) as seen:
        eval_command.compare(folder, tmp_path, lambda _: None, tmp_path / "texts.txt", "8", None)
    assert seen.value.args == (given,)


@pytest.mark.parametrize(
    ("cosine", "grade"),
    [
        (0.9993, "excellent"),
        (0.999, "excellent"),
        (0.9970, "good"),
        (0.985, "fair"),
        (0.957, "poor"),
    ],
)
def test_a_cosine_has_a_verdict(cosine: float, grade: str) -> None:
    agreement = Agreement(cosine, cosine, None, 0.01, None)
    assert verdict(asdict(agreement)) == (grade, GRADES[grade])
    (_, value, mark), *_ = shown(agreement)
    assert (value, mark) == (f"{cosine:.5f}", grade)
    assert verdict({}) == ("", "")
