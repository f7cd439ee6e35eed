"""Whole tasks on libraries with every head, beside a float side that is made of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from ibert_tvm import Encoder
from ibert_tvm.model.scores import normalized
from ibert_tvm.tasks import TASKS, DataError, Options, Side, evaluate_task, integer_side, task_drop
from tests.encoder.small_encoders import WORDS, tiny
from tests.snapshots import Messages

Make = Callable[..., Encoder]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Make:
    folder = tmp_path_factory.mktemp("tasks")
    made: dict[str, Encoder] = {}

    def make(kind: str) -> Encoder:
        if kind not in made:
            made[kind] = Encoder(tiny(kind).build(folder / f"{kind}.so"))
        return made[kind]

    return make


def noisy(side: Side, seed: int = 0) -> Side:
    """Another model: what `side` gives, and noise that follows from the tokens alone."""

    def run(tokens):
        ids = tokens.input_ids.astype(np.int64).sum(axis=1) + seed
        changed = []
        for values in side.run(tokens):
            noise = [np.random.default_rng(i).normal(size=values.shape[-1]) for i in ids]
            whole = np.stack(noise).reshape(len(values), *(1,) * (values.ndim - 2), -1)
            changed.append((values + whole * 2 * values.std()).astype(np.float32))
        return changed

    return replace(side, run=run)


def texts(count: int, seed: int = 0) -> list[str]:
    generator = np.random.default_rng(seed)
    return [" ".join(generator.choice(WORDS, generator.integers(1, 6))) for _ in range(count)]


def test_classes_of_both_models_and_their_difference(encoder: Make, tmp_path: Path) -> None:
    model = encoder("classes")
    items = texts(90)
    gold = [model.classify(t)["label"] if i % 3 else "odd" for i, t in enumerate(items)]
    path = tmp_path / "data.csv"
    path.write_text(
        "label,text\n" + "".join(f"{a},{b}\n" for a, b in zip(gold, items, strict=True))
    )
    options = Options(limit=80)
    samples = TASKS["classification"].read(path, options)
    side = integer_side(model)
    progress: list[tuple[int, int]] = []
    results = evaluate_task(
        TASKS["classification"],
        *(samples, side, noisy(side), options),
        progress=lambda *step: progress.append(step),
    )
    assert len(samples) == 80 and progress[-1] == (80, 80)
    right = np.mean(
        [a == model.classify(t)["label"] for a, t in zip(gold, items[:80], strict=False)]
    )
    accuracy, macro = results
    assert (accuracy.name, macro.name) == ("accuracy", "macro F1")
    assert accuracy.integer == pytest.approx(100 * right)
    assert accuracy.difference == pytest.approx(accuracy.integer - accuracy.floating)
    low, high = accuracy.interval
    assert low < accuracy.difference < high and accuracy.difference > 0
    alone = evaluate_task(TASKS["classification"], samples, side, options=options)
    assert [r.integer for r in alone] == [r.integer for r in results]
    assert alone[0].to_json() == {
        "name": "accuracy", "integer": 100 * right, "float": None, "difference": None,
        "interval": None,
    }  # fmt: skip


def test_f1_is_that_of_the_label_1(encoder: Make, tmp_path: Path) -> None:
    """GLUE's labels are numbers; --labels says which classes they are."""
    model = encoder("classes")
    pairs = list(zip(texts(60, 1), texts(60, 2), strict=True))
    side = noisy(integer_side(model))
    found = side.reading("mrpc", "logits").outputs(pairs).argmax(axis=1)
    wild = (found == model.labels.index("wild")).tolist()
    assert 3 < sum(wild) < 57
    gold = [str(int(is_wild if i % 4 else not is_wild)) for i, is_wild in enumerate(wild)]
    rows = "".join(f"{g}\t1\t2\t{a}\t{b}\n" for g, (a, b) in zip(gold, pairs, strict=True))
    (tmp_path / "dev.tsv").write_text(f"Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n{rows}")
    options = Options(labels={"1": "wild", "0": "calm"})
    samples = TASKS["mrpc"].read(tmp_path, options)
    accuracy, f1 = evaluate_task(TASKS["mrpc"], samples, side, options=options)
    assert (accuracy.name, f1.name) == ("accuracy", "F1")
    right = sum(is_wild and g == "1" for is_wild, g in zip(wild, gold, strict=True))
    assert f1.integer == pytest.approx(100 * 2 * right / (sum(wild) + gold.count("1")))


def test_similarity_of_vectors_is_their_cosine(encoder: Make, tmp_path: Path) -> None:
    model = encoder("embedding")
    first, second = texts(40, 1), texts(40, 2)
    vectors = [normalized(model.encode(part)).astype(np.float64) for part in (first, second)]
    cosines = (vectors[0] * vectors[1]).sum(axis=1)
    path = tmp_path / "pairs.tsv"
    rows = zip(first, second, cosines.tolist(), strict=True)
    path.write_text(
        "sentence1\tsentence2\tscore\n" + "".join(f"{a}\t{b}\t{c}\n" for a, b, c in rows)
    )
    samples = TASKS["sts"].read(path, Options())
    results = evaluate_task(TASKS["sts"], samples, integer_side(model))
    assert [r.name for r in results] == ["Spearman", "Pearson"]
    assert [r.integer for r in results] == pytest.approx([100, 100])


def test_vectors_are_compared_as_the_source_says(tmp_path: Path) -> None:
    record = {"similarity": "manhattan", "dimensions": 2}
    model = Encoder(tiny("embedding", post_processing=record).build(tmp_path / "tiny.so"))
    pairs = list(zip(texts(30, 1), texts(30, 2), strict=True))
    scores = [float(model.similarity(*map(model.encode, pair))[0, 0]) for pair in pairs]
    rows = "".join(f"{a}\t{b}\t{c}\n" for (a, b), c in zip(pairs, scores, strict=True))
    (tmp_path / "pairs.tsv").write_text("sentence1\tsentence2\tscore\n" + rows)
    samples = TASKS["sts"].read(tmp_path / "pairs.tsv", Options())
    results = evaluate_task(TASKS["sts"], samples, integer_side(model))
    assert [r.integer for r in results] == pytest.approx([100, 100])


def test_a_single_logit_is_a_score(encoder: Make, tmp_path: Path) -> None:
    model = encoder("score")
    pairs = list(zip(texts(30, 1), texts(30, 2), strict=True))
    scores = [-model.rerank(a, [b], function="none")[0]["score"] for a, b in pairs]
    path = tmp_path / "pairs.tsv"
    path.write_text("".join(f"{c}\t{a}\t{b}\n" for (a, b), c in zip(pairs, scores, strict=True)))
    options = Options(columns={"text": "2", "pair": "3", "label": "1"})
    samples = TASKS["sts"].read(path, options)
    results = evaluate_task(TASKS["sts"], samples, integer_side(model), options=options)
    assert [r.integer for r in results] == pytest.approx([-100, -100])


def test_retrieval(encoder: Make, tmp_path: Path) -> None:
    """Every document asks for itself, by another identifier, and is found first."""
    model = encoder("embedding")
    documents = sorted(set(texts(60, 5)))
    vectors = normalized(model.encode(documents)).astype(np.float64)
    alike = vectors @ vectors.T - np.eye(len(documents))
    kept = [i for i in range(len(documents)) if alike[i].max() < 0.999]
    assert len(kept) > 5
    (tmp_path / "qrels").mkdir()
    for name, letter in (("corpus", "d"), ("queries", "q")):
        lines = [json.dumps({"_id": f"{letter}{i}", "text": t}) for i, t in enumerate(documents)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    rows = "".join(f"q{i}\td{i}\t1\n" for i in kept)
    (tmp_path / "qrels" / "test.tsv").write_text(f"query-id\tcorpus-id\tscore\n{rows}")
    samples = TASKS["retrieval"].read(tmp_path, Options())
    side = integer_side(model)
    results = evaluate_task(TASKS["retrieval"], samples, side, noisy(side))
    assert [r.name for r in results] == ["NDCG@10", "recall@10", "recall@100"]
    assert results[0].integer == pytest.approx(100)
    assert results[0].floating < 100 and results[0].interval[1] > 0


def test_entities_are_those_of_the_words_first_tokens(encoder: Make, tmp_path: Path) -> None:
    model = encoder("tokens")
    sentences = [text.split() for text in texts(25, 3)]
    # The vocabulary holds whole words, so a word is one token.
    tags = [
        [t["entity"] if t else "O" for t in (tagged.get(i) for i in range(len(words)))]
        for words in sentences
        for tagged in [
            {
                len(" ".join(words)[: entity["start"]].split()): entity
                for entity in model.tag(" ".join(words), aggregation_strategy="none")
            }
        ]
    ]
    assert len({tag for row in tags for tag in row}) > 1
    path = tmp_path / "data.conll"
    blocks = [
        "\n".join(f"{w} {t}" for w, t in zip(words, row, strict=True))
        for words, row in zip(sentences, tags, strict=True)
    ]
    path.write_text("\n\n".join(blocks))
    samples = TASKS["token-classification"].read(path, Options())
    (result,) = evaluate_task(TASKS["token-classification"], samples, integer_side(model))
    assert (result.name, result.integer) == ("F1", 100)
    path.write_text("\n\n".join(blocks).replace("SIZE", "BULK"))
    samples = TASKS["token-classification"].read(path, Options())
    with pytest.raises(DataError) as caught:
        evaluate_task(TASKS["token-classification"], samples, integer_side(model))
    assert caught.value.what == "the model has no class for 'BULK'"
    renamed = Options(labels={"BULK": "SIZE"})
    (result,) = evaluate_task(
        TASKS["token-classification"], samples, integer_side(model), options=renamed
    )
    assert result.integer == 100


@pytest.mark.slow
def test_questions(encoder: Make, tmp_path: Path) -> None:
    model = encoder("spans")
    context = " ".join(texts(12, 9))  # several windows of 16 tokens
    found = model.answer("hello", context)
    questions = [
        {"question": "hello", "answers": [{"text": text}]} for text in (found["answer"], "nothing")
    ]
    document = {"data": [{"paragraphs": [{"context": context, "qas": questions}]}]}
    path = tmp_path / "dev.json"
    path.write_text(json.dumps(document))
    samples = TASKS["squad"].read(path, Options())
    results = evaluate_task(TASKS["squad"], samples, integer_side(model))
    assert [r.name for r in results] == ["exact match", "F1"]
    assert results[1].integer >= results[0].integer
    assert results[1].integer > 0


@pytest.mark.parametrize(
    ("kind", "task"), [("embedding", "rte"), ("classes", "retrieval"), ("classes", "squad")]
)
def test_a_model_with_another_head(messages: Messages, encoder: Make, kind: str, task: str) -> None:
    side = integer_side(encoder(kind))
    with messages.raises(DataError):
        TASKS[task].measure(None, side, Options())
    # Before a search calibrates, which takes minutes.
    with messages.raises(DataError):
        task_drop(TASKS[task], None, Options(), SimpleNamespace(info=side.info))
