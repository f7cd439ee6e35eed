"""`ibert run` says of texts what `Encoder` says, from one run of the library."""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np
import pytest

from ibert_tvm import Encoder
from ibert_tvm.common.errors import InputError
from ibert_tvm.encoder.readings import READINGS, run_and_read
from ibert_tvm.model.heads import KINDS
from tests.snapshots import Messages

Make = Callable[..., Encoder]
TEXTS = ["hello world", "big small world", "small"]
PAIRS = [("small world", text) for text in TEXTS]


@pytest.mark.parametrize(
    ("kind", "texts", "name", "said"),
    [
        ("classes", TEXTS, "classes", lambda model: model.classify(TEXTS, None)),
        ("classes", PAIRS, "classes", lambda model: model.classify(PAIRS, None)),
        ("score", TEXTS, "classes", lambda model: model.classify(TEXTS, None)),
        (
            "score",
            PAIRS,
            "classes",
            lambda model: [
                [{"label": "LABEL_0", "score": pytest.approx(model.rerank(*one)[0]["score"])}]
                for one in (("small world", [text]) for text in TEXTS)
            ],
        ),
        ("tokens", TEXTS, "entities", lambda model: model.tag(TEXTS)),
        ("spans", PAIRS, "answers", lambda model: [model.answer(*pair) for pair in PAIRS]),
        ("tokens", PAIRS, None, lambda model: []),
        ("spans", TEXTS, None, lambda model: []),
        ("embedding", TEXTS, None, lambda model: []),
    ],
)
def test_what_is_said_of_texts(
    encoder: Make, kind: str, texts: list, name: str | None, said: Callable[[Encoder], list]
) -> None:
    model = encoder(kind)
    outputs, reading, found = run_and_read(model.library, texts)
    assert (None if reading is None else reading.name) == name
    assert found == said(model)
    assert reading is None or all(map(reading.shown, found))
    for key, wanted in model.library.run_texts(texts, dequantize=False).items():
        np.testing.assert_array_equal(outputs[key].values, wanted.values)


def test_a_text_that_is_refused_is_named(encoder: Make, messages: Messages) -> None:
    model = encoder("tokens")
    for read in (model.tag, lambda texts: run_and_read(model.library, texts)):
        with messages.raises(InputError):
            read(["big", "small", ""])


def test_several_labels_have_scores_of_their_own(encoder: Make) -> None:
    model = encoder("classes", post_processing={"classes": "sigmoid"})
    _, reading, found = run_and_read(model.library, TEXTS)
    assert found == model.classify(TEXTS, None)
    assert reading is not None and sum(each["score"] for each in found[0]) != pytest.approx(1)
    assert reading.shown([{"label": "calm", "score": 0.98765}]) == "calm 0.9877"


def test_a_long_text_is_read_in_all_of_its_windows(
    encoder: Make, caplog: pytest.LogCaptureFixture
) -> None:
    model, texts = encoder("tokens"), ["big", "small big world " * 9, "hello"]
    with caplog.at_level(logging.WARNING):
        outputs, _, found = run_and_read(model.library, texts)
    assert found == model.tag(texts) and found[1][-1]["end"] > 80
    assert caplog.messages == ["arrays of texts with several windows are those of the first"]
    for key, wanted in model.library.run_texts(texts, dequantize=False).items():
        np.testing.assert_array_equal(outputs[key].values, wanted.values)
    spans, question = encoder("spans"), ("hello", texts[1])
    assert run_and_read(spans.library, [question])[2] == [spans.answer(*question)]


def test_token_ids_have_classes_and_nothing_that_needs_the_text(encoder: Make) -> None:
    classes = encoder("classes")
    batch = classes.tokenizer.encode(TEXTS, 16)
    inputs = batch.inputs([record.name for record in classes.library.metadata.inputs])
    assert run_and_read(classes.library, inputs=inputs)[2] == classes.classify(TEXTS, None)
    _, reading, found = run_and_read(encoder("tokens").library, inputs=inputs)
    assert (reading, found) == (None, [])


def test_every_way_of_using_an_output_but_vectors_is_read() -> None:
    assert set(READINGS) == {kind.compared for kind in KINDS.values()} - {"vectors"}
