"""Scores, classes, entities and answers, compared with what the library gives."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from ibert_tvm import Encoder
from ibert_tvm.common.errors import InputError, UsageError
from ibert_tvm.encoder.readings import TaggedToken, entities, tagged_tokens
from ibert_tvm.model.spans import best_span, no_answer
from ibert_tvm.model.tokenization import Window
from tests.snapshots import Messages

Make = Callable[..., Encoder]
DOCUMENTS = ["big", "hello world", "small small", "hello", "big"]


def softmax(row: np.ndarray) -> np.ndarray:
    powers = np.exp(row.astype(np.float64) - row.max())
    return powers / powers.sum()


def test_rerank_orders_by_the_models_score(encoder: Make) -> None:
    model = encoder("score")
    scores = [
        float(model.library.run_texts([("small world", d)])["embedding"][0, 0]) for d in DOCUMENTS
    ]
    assert len(set(scores)) == len(scores) - 1  # two documents are equal
    ranked = model.rerank("small world", DOCUMENTS, batch_size=2, function="none")
    assert [r["score"] for r in ranked] == sorted(scores, reverse=True)
    assert all(r["score"] == scores[r["corpus_id"]] for r in ranked)
    places = [r["corpus_id"] for r in ranked]
    assert places.index(0) < places.index(4)
    best = model.rerank("small world", DOCUMENTS, top_k=2, function="none")
    assert best == ranked[:2]
    assert model.rerank("small world", []) == []
    for result in model.rerank("small world", DOCUMENTS):
        odds = np.exp(-scores[result["corpus_id"]])
        assert result["score"] == pytest.approx(1 / (1 + odds), abs=1e-7)


def test_the_sources_own_functions_are_the_default(messages: Messages, encoder: Make) -> None:
    stated = {"pairs": "relu", "classes": "none"}
    settings = {"post_processing": stated, "prompts": {"q": "big "}, "default_prompt_name": "q"}
    model, plain = encoder("score", **settings), encoder("score")
    wanted = plain.rerank("big small", DOCUMENTS, function="relu")
    assert model.rerank("small", DOCUMENTS) == wanted != plain.rerank("small", DOCUMENTS)
    assert model.rerank("small", DOCUMENTS, prompt="", function="none") == plain.rerank(
        "small", DOCUMENTS, function="none"
    )
    assert model.classify("big") == plain.classify("big", function="none")
    with messages.raises(UsageError):
        model.rerank("small", DOCUMENTS, function="gelu")


def test_classes_from_a_threshold_on(messages: Messages, encoder: Make) -> None:
    plain = encoder("classes")
    every = plain.classify(DOCUMENTS, None)
    least = np.median([one["score"] for classes in every for one in classes])
    assert plain.classify(DOCUMENTS, threshold=least) == [
        [one for one in classes if one["score"] >= least][:1] for classes in every
    ]
    thresholds = {"wild": 2.0, "odd": least}
    model = encoder("classes", post_processing={"thresholds": thresholds})
    assert model.classify(DOCUMENTS, None) == every
    assert model.classify(DOCUMENTS, None, threshold=True) == [
        [one for one in classes if one["score"] >= thresholds.get(one["label"], 0)]
        for classes in every
    ]
    with messages.raises(UsageError):
        plain.classify(DOCUMENTS, threshold=True)


def test_vectors_are_cut_and_compared_as_the_source_says(messages: Messages, encoder: Make) -> None:
    plain = encoder("embedding")
    vectors = plain.encode(DOCUMENTS)
    model = encoder("embedding", post_processing={"dimensions": 2, "similarity": "manhattan"})
    np.testing.assert_array_equal(model.encode(DOCUMENTS), vectors[:, :2])
    np.testing.assert_array_equal(plain.encode("big", truncate_dim=2), vectors[0, :2])
    assert model.embedding_size == 2
    whole = model.encode("big", output_value=None)["sentence_embedding"]
    np.testing.assert_array_equal(whole.numpy(), vectors[0, :2])
    with pytest.raises(UsageError, match="truncate_dim is 0"):
        model.encode("big", truncate_dim=0)
    norms = np.linalg.norm(model.encode(DOCUMENTS, normalize_embeddings=True), axis=1)
    np.testing.assert_allclose(norms, 1, rtol=1e-6)
    distances = np.abs(vectors[:, None] - vectors[None]).sum(axis=2)
    np.testing.assert_allclose(model.similarity(vectors, vectors), -distances, rtol=1e-6)
    np.testing.assert_allclose(plain.similarity(vectors, vectors).diagonal(), 1, rtol=1e-6)
    products = plain.similarity(vectors[0], vectors, "dot")
    np.testing.assert_allclose(products[0], vectors @ vectors[0], rtol=1e-6)
    tokens = plain.encode(DOCUMENTS, output_value="token_embeddings")
    late = model.similarity(tokens[:1], tokens, "maxsim")
    assert late.shape == (1, len(DOCUMENTS)) and str(late.dtype) == "torch.float32"
    with messages.raises(UsageError):
        model.similarity(vectors, vectors, "closeness")


def test_classify_names_the_classes(encoder: Make) -> None:
    model = encoder("classes")
    logits = model.library.run_texts(DOCUMENTS)["embedding"]
    for text, row, result in zip(DOCUMENTS, logits, model.classify(DOCUMENTS), strict=True):
        best = int(row.argmax())
        assert result["label"] == ["calm", "wild", "odd", "big"][best]
        assert result["score"] == pytest.approx(softmax(row)[best], abs=1e-12)
        assert model.classify(text) == result
    (every,) = model.classify([("hello", "big")], top_k=None, function="none")
    pair = model.library.run_texts([("hello", "big")])["embedding"][0]
    assert [e["score"] for e in every] == sorted(pair.tolist(), reverse=True)
    raw = model.classify("big", function="sigmoid")
    assert raw["score"] == pytest.approx(1 / (1 + np.exp(-logits[0].max().astype(float))))


def test_one_class_has_a_probability_of_its_own(encoder: Make) -> None:
    model = encoder("score")
    logit = float(model.library.run_texts(["big"])["embedding"][0, 0])
    assert model.classify("big") == {
        "label": "LABEL_0",
        "score": pytest.approx(1 / (1 + np.exp(-logit)), abs=1e-12),
    }


def test_tag_names_the_words_of_a_text_of_any_length(encoder: Make) -> None:
    model = encoder("tokens")
    text = "hello big world small " * 9  # windows of 16 tokens, 14 of them words
    words = text.split()
    expected = {}
    for word in set(words):
        batch = model.tokenizer.encode([word], 16)
        expected[word] = softmax(model.library.run(batch.input_ids)["hidden"][0, 1])
    found = model.tag(text, aggregation_strategy="none", batch_size=2)
    places = [text[f["start"] : f["end"]] for f in found]
    labels = ["O", "B-SIZE", "I-SIZE"]
    assert places == [w for w in words if expected[w].argmax() != 0]
    for entity in found:
        row = expected[entity["word"]]
        assert entity["entity"] == labels[int(row.argmax())]
        assert entity["score"] == pytest.approx(row.max(), abs=1e-12)
    assert model.tag([text, text], aggregation_strategy="none") == [found, found]


def test_neighbours_of_one_class_are_one_entity() -> None:
    text = "New York and Ann Bob"
    labels = ["B-LOC", "I-LOC", "O", "I-PER", "B-PER"]
    starts = [0, 4, 9, 13, 17]
    tokens = [
        TaggedToken(label, 0.5 + 0.1 * i, start, start + len(text[start:].split()[0]))
        for i, (label, start) in enumerate(zip(labels, starts, strict=True))
    ]
    assert entities(text, tokens, grouped=True) == [
        {"entity_group": "LOC", "score": 0.55, "word": "New York", "start": 0, "end": 8},
        {"entity_group": "PER", "score": pytest.approx(0.8), "word": "Ann", "start": 13, "end": 16},
        {"entity_group": "PER", "score": 0.9, "word": "Bob", "start": 17, "end": 20},
    ]
    others = [replace(t, label=t.label.replace("I-", "E-")) for t in tokens]
    names = [(e["entity_group"], e["word"]) for e in entities(text, others, grouped=True)]
    assert names == [("LOC", "New"), ("LOC", "York"), ("PER", "Ann"), ("PER", "Bob")]


def test_words_have_one_class_each() -> None:
    window = Window(
        ids=(0, 1, 2, 3),
        type_ids=(0,) * 4,
        offsets=((0, 0), (0, 3), (3, 5), (6, 9)),
        texts=(None, 0, 0, 0),
        words=(None, 0, 0, 1),
    )
    rows = np.array([[1, 0, 0], [0.4, 0.5, 0.1], [0.25, 0.05, 0.7], [0, 1, 0]])
    wanted = {"first": (1, 0.5), "max": (2, 0.7), "average": (2, 0.4), "simple": (1, 0.5)}
    for strategy, (label, score) in wanted.items():
        tokens = tagged_tokens(window, rows, str, strategy, [False, False, True, False])
        assert len(tokens) == (3 if strategy == "simple" else 2)
        assert (tokens[0].label, tokens[0].score) == (str(label), pytest.approx(score))
        assert tokens[-1] == TaggedToken("1", 1.0, 6, 9)


def test_a_group_has_no_prefix_in_its_name() -> None:
    tokens = [TaggedToken(label, 1.0, 4 * i, 4 * i + 3) for i, label in enumerate(["U-A", "S-A"])]
    found = entities("one two", tokens, grouped=True)
    assert [(e["entity_group"], e["word"]) for e in found] == [("A", "one"), ("A", "two")]


def test_answer_is_the_best_span_of_all_windows(encoder: Make) -> None:
    model = encoder("spans")
    question, context = "small world", "hello big " * 12 + "world"
    answer = model.answer(question, context, max_answer_len=3)
    assert answer["answer"] == context[answer["start"] : answer["end"]]
    rows = {
        word: model.library.run(
            model.tokenizer.encode([("small", word)], 16).input_ids,
            token_type_ids=model.tokenizer.encode([("small", word)], 16).token_type_ids,
        )["hidden"][0, 3]
        for word in set(context.split())
    }
    # Every window repeats the same words: the best span of one is that of its logits. Its first
    # token stands for no answer, and has a probability, too.
    first = model.library.run(model.tokenizer.encode(["small"], 16).input_ids)["hidden"][0, 0]
    best, none = -1.0, 1.0
    for window in model.tokenizer.question_windows((question, context), 16):
        words = [
            context[a:b] for (a, b), t in zip(window.offsets, window.texts, strict=True) if t == 1
        ]
        start, end = (softmax(np.array([first[i], *(rows[w][i] for w in words)])) for i in (0, 1))
        none = min(none, start[0] * end[0])
        start, end = start[1:], end[1:]
        for a, b in itertools.combinations_with_replacement(range(len(words)), 2):
            best = max(best, start[a] * end[b] if b - a < 3 else 0)
    assert answer["score"] == pytest.approx(best, abs=1e-12)
    possible = model.answer(question, context, max_answer_len=3, handle_impossible_answer=True)
    if none > best:
        assert possible.pop("score") == pytest.approx(none, abs=1e-12)
        assert possible == {"answer": "", "start": 0, "end": 0}
    else:
        assert possible == answer


def test_a_span_is_widened_to_whole_words() -> None:
    window = Window(
        ids=(0, 1, 2, 3, 4, 5),
        type_ids=(0,) * 6,
        offsets=((0, 0), (0, 3), (0, 0), (0, 4), (4, 7), (8, 9)),
        texts=(None, 0, None, 1, 1, 1),
        words=(None, 0, None, 0, 0, 1),
    )
    logits = np.zeros((6, 2), np.float32)
    logits[1] = 90  # of the question, which is no answer
    logits[4] = 8
    span = best_span(window, logits, 15)
    assert span is not None and (span.start, span.end) == (0, 7)
    longer = np.zeros((6, 2), np.float32)
    longer[3, 0] = longer[5, 1] = 8
    span = best_span(window, longer, 15)
    assert span is not None and (span.start, span.end) == (0, 9)
    span = best_span(window, longer, 2)  # no longer one than that
    assert span is not None and span.score < 1e-3
    assert no_answer(window, longer) < 1e-3
    longer[0] = 20  # the first token stands for no answer
    span = best_span(window, longer, 15)
    assert span is not None and (span.start, span.end) == (0, 9) and span.score < 1e-3
    assert no_answer(window, longer) > 0.99
    alone = replace(window, texts=(0, 0, None, 1, 1, 1))
    assert no_answer(alone, longer) == 0


def test_a_question_that_leaves_no_room(messages: Messages, encoder: Make) -> None:
    with messages.raises(InputError):
        encoder("spans").answer("big " * 14, "hello world")


def test_a_method_that_the_head_does_not_have(messages: Messages, encoder: Make) -> None:
    model = encoder("embedding")
    calls = (
        lambda: model.rerank("a", ["b"]),
        lambda: model.classify("a"),
        lambda: model.tag("a"),
        lambda: model.answer("a", "b"),
    )
    for call in calls:
        with messages.raises(UsageError):
            call()
    for kind, method in (("score", "encode"), ("classes", "encode")):
        with pytest.raises(UsageError, match=f"the model cannot {method}"):
            getattr(encoder(kind), method)("a")
    with pytest.raises(UsageError, match="it has 4 classes, and a score is one"):
        encoder("classes").rerank("a", ["b"])
