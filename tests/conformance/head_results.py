"""What heads give, compared with the model's own library: ranks, classes, entities, answers.

Scores come from integers, so they differ from the library's within a tolerance. What is made of
scores must not differ at all: a pipeline of transformers gets the scores of the integers
(`IbertModel`), and everything behind them is compared for equality.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from ibert_tvm import Encoder
from ibert_tvm.model.tokenizer_behaviour import PROBES
from tests.conformance.evaluated import float_encoder

_TOLERANCE, _EXACT = 0.1, 0.003
"""Of a score, relative to the spread of all scores: of integers, and before they are quantised."""
QUERY = "Who sat on the mat?"
DOCUMENTS = (
    "The cat sat on the mat.",
    "A dog barks at the moon, again and again.",
    "Nobody sat there: the mat was wet",
    "Naïve façades of Straße and ÀÉÎÕÜ",
    "3.14, 1,000 and 50% of all mats",
    "你好，世界 and more words",
    "  spaces   before and behind  ",
    "emoji 😀 on a mat",
    "one",
    "a long document that goes on and says nothing about cats " * 4,
)
"""Ten candidates, of which one is longer than small models read."""
PAIRS = [(QUERY, document) for document in DOCUMENTS]
REVIEWS = (
    "The best cat that I have ever seen!",
    "terrible: broken on the first day",
    "It is, well, a mat.",
    "NAÏVE and loud, 3 of 10",
)
SENTENCES = (
    "Angela Merkel met Mr. O'Neill-Smith in New York on 3 May.",
    "the EU and UNESCO signed it in Paris, said Dr. Zoë Müller (Berlin).",
    "one",
    "Straße 5,  10115 Berlin—Mitte; call +49-30 or mail a.b@example.org",
)
QUESTION = "Where does the cat sit?"
CONTEXT = "The cat, called Unbelievable-Tom, sat on Ms. Miller's mat in New York; 42 dogs barked. "


def close(
    outputs: Callable[[Encoder], np.ndarray], encoder: Encoder, exact: Encoder, wanted: np.ndarray
) -> np.ndarray:
    """Compare outputs of integers, and those before they were quantised; return the former."""
    spread = max(np.ptp(wanted), 1.0)
    for each, tolerance in ((exact, _EXACT), (encoder, _TOLERANCE)):
        found = outputs(each)
        assert found.shape == wanted.shape
        np.testing.assert_allclose(found, wanted, rtol=0, atol=tolerance * spread)
    return found


def same_ids(tokenizer: Any, encoder: Encoder, texts: Sequence[Any], length: int) -> None:
    """Compare ids, masks and token types with what the library's tokenizer feeds its model."""
    names = [record.name for record in encoder.library.metadata.inputs]
    for text in (*texts, *PROBES):
        pair = text if isinstance(text, tuple) else (text,)
        wanted = tokenizer(*pair, truncation=True, max_length=length)
        found = encoder.tokenizer.encode([text], length, allow_empty=True).inputs(names)
        for name in names:
            zeros = [0] * len(wanted["input_ids"])
            assert found[name][0].tolist() == wanted.get(name, zeros), (name, text)


def ranks(folder: Path, encoder: Encoder) -> None:
    """A `CrossEncoder` with one score: ids, scores and the order of ten candidates."""
    from sentence_transformers import CrossEncoder

    source = CrossEncoder(str(folder), device="cpu", local_files_only=True)
    assert source.max_seq_length == encoder.max_seq_length
    same_ids(source.tokenizer, encoder, PAIRS, encoder.max_seq_length)
    wanted = source.predict(PAIRS, activation_fn=torch.nn.Identity())
    exact = float_encoder(folder)
    logits = close(_logits_of(PAIRS), encoder, exact, wanted[:, None])[:, 0]
    order = [entry["corpus_id"] for entry in source.rank(QUERY, [*DOCUMENTS])]
    assert [entry["corpus_id"] for entry in exact.rerank(QUERY, DOCUMENTS)] == order
    result = encoder.rerank(QUERY, DOCUMENTS)
    ranked = [entry["corpus_id"] for entry in result]
    scores = source.activation_fn(torch.from_numpy(np.sort(logits)[::-1].copy())).tolist()
    assert [entry["score"] for entry in result] == pytest.approx(scores, abs=2e-6)
    assert ranked == np.argsort(-logits, kind="stable").tolist()
    limit = _TOLERANCE * np.ptp(wanted)
    apart = [(a, b) for a in range(10) for b in range(10) if wanted[a] > wanted[b] + limit]
    assert len(apart) > 20
    assert all(ranked.index(a) < ranked.index(b) for a, b in apart)


def classes_of_pairs(folder: Path, encoder: Encoder) -> None:
    """A `CrossEncoder` with several scores: ids, scores and the best class."""
    from sentence_transformers import CrossEncoder

    source = CrossEncoder(str(folder), device="cpu", local_files_only=True)
    same_ids(source.tokenizer, encoder, PAIRS, encoder.max_seq_length)
    wanted = source.predict(PAIRS, activation_fn=torch.nn.Identity())
    close(_logits_of(PAIRS), encoder, float_encoder(folder), wanted)
    classes(folder, encoder, [pair for pair in PAIRS if len(pair[1]) < 100])


def classes(folder: Path, encoder: Encoder, texts: Sequence[Any] = REVIEWS) -> None:
    """A text classification pipeline: labels, scores and their order."""
    from ibert_tvm.adapters.transformers import pipeline  # which takes seconds

    source = transformers.pipeline("text-classification", str(folder), device="cpu", top_k=None)
    same_ids(source.tokenizer, encoder, texts, encoder.max_seq_length)
    given = [{"text": t[0], "text_pair": t[1]} if isinstance(t, tuple) else t for t in texts]
    labels = tuple(name for _, name in sorted(source.model.config.id2label.items()))
    assert encoder.labels == labels
    wanted = _scores(source(given, function_to_apply="none"), labels)
    exact = float_encoder(folder)
    close(_logits_of(texts), encoder, exact, wanted)
    _with_integers(source, encoder, "classify")
    for top_k in (None, 1, 2):
        wanted = source(given, top_k=top_k)
        adapted = pipeline("text-classification", encoder)(given, top_k=top_k, batch_size=2)
        own = encoder.classify(texts, top_k=top_k)
        _same([[e] for e in own] if top_k == 1 else own, wanted)
        _same(adapted, wanted)


def entities(folder: Path, encoder: Encoder) -> None:
    """A token classification pipeline: words, places, labels, scores and groups."""
    from ibert_tvm.adapters.transformers import pipeline

    source = transformers.pipeline("token-classification", str(folder), device="cpu")
    same_ids(source.tokenizer, encoder, SENTENCES, encoder.max_seq_length)
    exact = float_encoder(folder)
    for text in SENTENCES:
        tokens = source.tokenizer(text, return_tensors="pt")
        with torch.no_grad():
            wanted = source.model(**tokens).logits.numpy()
        close(partial(_output, tokens, "tag"), encoder, exact, wanted)
    _with_integers(source, encoder, "tag")
    adapted = pipeline("ner", encoder)
    for strategy in ("none", "simple", "first", "average", "max"):
        wanted = source([*SENTENCES], aggregation_strategy=strategy)
        assert any(wanted)
        _same(adapted([*SENTENCES], aggregation_strategy=strategy), wanted)
        kept = [
            [{k: v for k, v in e.items() if k not in ("index", "word")} for e in found]
            for found in wanted
        ]
        own = encoder.tag([*SENTENCES], strategy)
        for text, found in zip(SENTENCES, own, strict=True):
            assert all(e.pop("word") == text[e["start"] : e["end"]] for e in found)
        _same(own, kept)


def answers(folder: Path, encoder: Encoder) -> None:
    """Question answering: the answer, its place and score, in short and in long contexts.

    Transformers 5 has the models and no pipeline; what that of version 4 computed is written down
    in `_answer`.
    """
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForQuestionAnswering.from_pretrained(folder).eval()
    length = encoder.max_seq_length
    same_ids(tokenizer, encoder, [(QUESTION, CONTEXT)], length)
    tokens = tokenizer(QUESTION, CONTEXT, truncation=True, max_length=length, return_tensors="pt")
    with torch.no_grad():
        result = model(**tokens)
    wanted = torch.stack([result.start_logits, result.end_logits], -1).numpy()
    exact = float_encoder(folder)
    close(partial(_output, tokens, "answer"), encoder, exact, wanted)
    for context, possible in itertools.product((CONTEXT, CONTEXT * 5), (False, True)):
        own = encoder.answer(QUESTION, context, handle_impossible_answer=possible)
        answer = _answer(tokenizer, encoder, context, possible)
        assert own.pop("score") == pytest.approx(answer.pop("score"), rel=1e-5)
        assert own == answer


def _answer(tokenizer: Any, encoder: Encoder, context: str, possible: bool) -> dict[str, Any]:
    """What the pipeline ``question-answering`` of transformers 4 gives for the integers.

    That of its versions up to 4.48: later ones add the scores of spans of the same words.
    """
    limit = encoder.max_seq_length
    parts = tokenizer(
        QUESTION,
        context,
        truncation="only_second",
        max_length=limit,
        stride=min(limit // 2, 128),
        return_overflowing_tokens=True,
        return_token_type_ids=True,
    )
    best: dict[str, Any] = {"score": -1.0}
    none = 1e6
    names = [record.name for record in encoder.library.metadata.inputs]
    for place, ids in enumerate(parts["input_ids"]):
        given = {name: np.array([parts[name][place]]) for name in names}
        logits = encoder.library.run(**given)[encoder.output_name("answer")][0]
        allowed = np.array([text == 1 for text in parts.sequence_ids(place)])
        allowed |= np.array(ids) == tokenizer.cls_token_id
        powers = np.exp(np.where(allowed[:, None], logits.astype(float), -1e4) - logits.max())
        start, end = (powers / powers.sum(axis=0)).T
        none = min(none, start[0] * end[0])
        start[0] = end[0] = 0
        scores = np.tril(np.triu(np.outer(start, end)), 14)
        first, last = np.unravel_index(scores.argmax(), scores.shape)
        if scores[first, last] > best["score"]:
            encoding = parts.encodings[place]
            words = [encoding.token_to_word(int(token)) for token in (first, last)]
            begin = encoding.word_to_chars(words[0], 1)[0]
            stop = encoding.word_to_chars(words[1], 1)[1]
            best = {"score": scores[first, last], "start": begin, "end": stop}
    if possible and none > best["score"]:
        best = {"score": none, "start": 0, "end": 0}
    return {**best, "answer": context[best["start"] : best["end"]]}


def _logits_of(texts: Sequence[Any]) -> Callable[[Encoder], np.ndarray]:
    """Logits of the classes, in the order of the labels."""
    return lambda encoder: _scores(
        encoder.classify(texts, top_k=None, function="none"), encoder.labels
    )


def _output(tokens: Mapping[str, torch.Tensor], method: str, encoder: Encoder) -> np.ndarray:
    """What a method reads of tokens."""
    names = [record.name for record in encoder.library.metadata.inputs]
    given: dict[str, Any] = {
        name: tokens[name].numpy() if name in tokens else None for name in names
    }
    return encoder.library.run(**given)[encoder.output_name(method)]


def _with_integers(source: Any, encoder: Encoder, method: str) -> None:
    """Let a pipeline of transformers read what the integers give."""
    config = source.model.config
    from ibert_tvm.adapters.transformers import IbertModel

    source.model = IbertModel(encoder, encoder.output_name(method), "logits")
    source.model.config = config


def _scores(found: Any, labels: Sequence[str]) -> np.ndarray:
    return np.array(
        [[{e["label"]: e["score"] for e in one}[name] for name in labels] for one in found]
    )


def _same(found: Any, wanted: Any) -> None:
    """Compare results: scores but for the last bits of a float32, everything else exactly."""
    if isinstance(wanted, Mapping):
        assert found.keys() == wanted.keys()
        for key, value in wanted.items():
            assert found[key] == (pytest.approx(value, abs=2e-6) if key == "score" else value), key
        return
    assert len(found) == len(wanted), (found, wanted)
    for one, other in zip(found, wanted, strict=True):
        _same(one, other)


Compare = Callable[[Path, Encoder], None]
