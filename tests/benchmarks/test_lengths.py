"""Sentences of real lengths: which batches each variant gets, and what is counted."""

from __future__ import annotations

import argparse

import numpy as np
import pytest

from benchmarks import lengths
from benchmarks.lengths import VARIANTS, batches_for, sentence_lengths
from benchmarks.models import MODELS
from benchmarks.process import WorkerError
from tests.benchmarks.documents import document


@pytest.fixture
def folder(tmp_path):
    """A folder with a tokenizer of words."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {
        "[UNK]": 0,
        **{word: i for i, word in enumerate(["the", "of", "and", "a", "in", "to", "is", "was"], 1)},
    }
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def test_batches_hold_the_same_sentences_in_every_form(folder):
    masked, tokens = batches_for(folder, "masked", 5)
    full, same = batches_for(folder, "full", 5)
    dynamic, too = batches_for(folder, "dynamic", 5)
    assert len(masked) == len(full) == len(dynamic) == 5
    assert tokens == same == too == sum(int(b["attention_mask"].sum()) for b in masked)
    for m, f, d in zip(masked, full, dynamic, strict=True):
        assert m["input_ids"].shape == f["input_ids"].shape == (8, 128)
        np.testing.assert_array_equal(m["input_ids"], f["input_ids"])
        assert f["attention_mask"].all()
        longest = m["attention_mask"].sum(axis=1).max()
        assert d["input_ids"].shape == (8, longest)
        np.testing.assert_array_equal(d["input_ids"], m["input_ids"][:, :longest])
        np.testing.assert_array_equal(d["attention_mask"], m["attention_mask"][:, :longest])


def test_batches_are_spread_over_all_texts(folder):
    lengths = sentence_lengths(folder)
    everything, tokens = batches_for(folder, "masked", 10**6)
    assert len(everything) == len(lengths) // 8
    assert tokens == sum(lengths[: len(everything) * 8])
    first_and_last, _ = batches_for(folder, "masked", 2)
    for ours, theirs in zip(first_and_last, (everything[0], everything[-1]), strict=True):
        np.testing.assert_array_equal(ours["input_ids"], theirs["input_ids"])


class _FakeWorker:
    def __init__(self, spec, name, cell, threads, cache, workload):
        assert workload == "lengths:4"
        if name == "openvino-int8-masked":
            raise WorkerError("ended: no memory")
        self.hello = {"estimate_ms": 5.0, "tokens": 600}
        self.times = {"ibert": [2.0, 4.0, 3.0], "ibert-all-tokens": [6.0]}[name]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def turn(self, seconds, warm_up, least):
        return {"times_ms": self.times, "processor_seconds": 0.0, "peak_mib": 1.0}


def test_real_tokens_per_second(monkeypatch, messages):
    monkeypatch.setattr(lengths, "Worker", _FakeWorker)
    options = argparse.Namespace(rounds=2, batches=4, cache=None)
    names = ["ibert", "ibert-all-tokens", "openvino-int8-masked"]
    rows = lengths._measure(MODELS["minilm"], 1, names, options)
    assert [row.get("tokens_per_second") for row in rows] == [200_000.0, 100_000.0, None]
    assert (rows[0]["runs"], rows[0]["min_ms"], rows[0]["tokens"]) == (6, 2.0, 600)
    assert rows[2]["failed"] == "ended: no memory"
    settings = {"rounds": 2, "batches": 4}
    messages.check(lengths._markdown(document(*rows, lengths=[10, 20, 30, 40], settings=settings)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--models", "gpt"], "--models: 'gpt' is not valid; known: minilm, bert-base, bert-large"),
        (["--threads", "0"], "--threads: '0' is not a list of numbers from 1 to "),
        (["--batches", "0"], "--batches and --rounds must be at least 1"),
    ],
)
def test_arguments_that_make_no_sense(capsys, arguments, message):
    with pytest.raises(SystemExit) as caught:
        lengths.main(arguments)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_every_variant_is_run_by_a_peer_that_there_is():
    from benchmarks.peers import find_peer

    assert {find_peer(variant.peer).precision for variant in VARIANTS.values()} == {"int8"}
