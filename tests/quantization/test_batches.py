"""Calibration data: what becomes a batch, and what is refused with which text."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from ibert_tvm.common.errors import UsageError
from ibert_tvm.model.model_info import ModelInfo, OutputInfo
from ibert_tvm.model.tokenization import TokenizedBatch
from ibert_tvm.quantization import CalibrationOptions
from ibert_tvm.quantization.batches import Batch, batches_of, batches_of_arrays, batches_of_texts
from ibert_tvm.quantization.observe import sampled_positions

INFO = ModelInfo(
    architecture="bert",
    head="none",
    inputs=("input_ids", "attention_mask", "token_type_ids"),
    outputs=(OutputInfo("last_hidden_state", "x", "hidden_state"),),
    hidden_size=4,
    num_layers=1,
    vocab_size=100,
    type_vocab_size=2,
    max_sequence_length=64,
)


class Words:
    """Stands in for a tokenizer: one token per word, its length."""

    def encode(self, texts, max_length, pad_to=None):
        lists = [[len(word) for word in text.split()][:max_length] for text in texts]
        length = max(map(len, lists))
        ids = np.zeros((len(lists), length), np.int32)
        mask = np.zeros_like(ids)
        for row, items in enumerate(lists):
            ids[row, : len(items)] = items
            mask[row, : len(items)] = 1
        return TokenizedBatch(ids, mask, np.zeros_like(ids), ())


def test_texts_are_grouped_by_length_into_full_batches():
    texts = ["one two"] * 9 + ["word " * 40, "", "   "]
    batches = batches_of_texts(texts, Words(), INFO, 64)
    assert [b.inputs["input_ids"].shape for b in batches] == [(8, 32), (8, 32), (8, 64)]
    assert sum((b.lengths > 0).sum() for b in batches) == 10
    assert {tuple(sorted(b.inputs)) for b in batches} == {tuple(sorted(INFO.inputs))}
    # Rows that only fill a batch hold no token.
    assert batches[1].lengths.tolist() == [2, 0, 0, 0, 0, 0, 0, 0]
    assert not batches[1].inputs["input_ids"][1:].any()


@pytest.mark.parametrize(
    ("head", "labels", "pairs"),
    [
        ("sequence_classification", ("score",), True),
        ("sequence_classification", ("no", "yes"), False),
        ("question_answering", (), True),
        ("none", (), False),
    ],
)
def test_models_of_pairs_are_calibrated_with_pairs_too(head, labels, pairs):
    class Seen(Words):
        def encode(self, texts, max_length, pad_to=None):
            self.texts = texts
            return super().encode([" ".join(t) if isinstance(t, tuple) else t for t in texts], 64)

    info = replace(INFO, head=head, id2label=dict(enumerate(labels)))
    model, seen = SimpleNamespace(info=info, tokenizer={}), Seen()
    options = CalibrationOptions(short_pieces=False).observation
    batches_of(model, ["a", "b", "c"], options, seen)
    of_pairs = [("a", "b"), ("b", "c"), ("c", "a")]
    assert seen.texts == ["a", "b", "c", *(of_pairs if pairs else [])]
    batches_of(model, [("a", "b")], options, seen)
    assert seen.texts == [("a", "b")]


def test_few_of_many_texts_are_spread_over_all():
    texts = ["x" * length for length in range(1, 11)]
    for most, kept in ((4, [1, 3, 6, 8]), (10, list(range(1, 11))), (None, list(range(1, 11)))):
        options = CalibrationOptions(seq_len=8, most_texts=most).observation
        (batch, *rest) = batches_of(SimpleNamespace(info=INFO), texts, options, Words())
        found = [batch, *rest]
        ids = np.concatenate([each.inputs["input_ids"][each.mask] for each in found])
        assert sorted(ids.tolist()) == kept


def test_texts_are_truncated_to_the_sequence_length():
    (batch,) = batches_of_texts(["word " * 40], Words(), INFO, 5)
    assert batch.inputs["input_ids"].shape == (8, 5)
    assert batch.lengths[0] == 5


def test_arrays_may_leave_out_mask_and_types():
    (batch,) = batches_of_arrays([{"input_ids": np.array([[1, 2, 3]], np.uint8)}], INFO)
    assert {name: a.dtype for name, a in batch.inputs.items()} == dict.fromkeys(
        INFO.inputs, np.dtype(np.int64)
    )
    np.testing.assert_array_equal(batch.inputs["attention_mask"], [[1, 1, 1]])
    np.testing.assert_array_equal(batch.inputs["token_type_ids"], [[0, 0, 0]])


def ids(*values: int) -> np.ndarray:
    return np.array([values])


REFUSED = {
    "no text": lambda: batches_of_texts([], Words(), INFO, 64),
    "only empty texts": lambda: batches_of_texts([" ", "\t"], Words(), INFO, 64),
    "too long": lambda: batches_of_texts(["a"], Words(), INFO, 65),
    "foreign tokenizer": lambda: batches_of_texts(["a" * 120], Words(), INFO, 64),
    "no batch": lambda: batches_of_arrays([], INFO),
    "unknown input": lambda: batches_of_arrays([{"input_ids": ids(1), "labels": ids(1)}], INFO),
    "no ids": lambda: batches_of_arrays([{"attention_mask": ids(1)}], INFO),
    "float ids": lambda: batches_of_arrays([{"input_ids": np.ones((1, 2))}], INFO),
    "shapes": lambda: batches_of_arrays([{"input_ids": ids(1, 2), "attention_mask": ids(1)}], INFO),
    "long arrays": lambda: batches_of_arrays([{"input_ids": np.ones((1, 65), np.int64)}], INFO),
    "unknown token": lambda: batches_of_arrays(
        [{"input_ids": ids(1)}, {"input_ids": ids(3, 100)}], INFO
    ),
    "unknown type": lambda: batches_of_arrays(
        [{"input_ids": ids(1), "token_type_ids": ids(-1)}], INFO
    ),
    "another mask": lambda: batches_of_arrays(
        [{"input_ids": ids(1, 2), "attention_mask": ids(1, 7)}], INFO
    ),
    "nothing but padding": lambda: batches_of_arrays(
        [{"input_ids": ids(1), "attention_mask": ids(0)}], INFO
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_unusable_calibration_is_refused_with_the_reason(messages, case):
    with messages.raises(UsageError):
        REFUSED[case]()


def batch(*lengths: int) -> Batch:
    mask = (np.arange(40) < np.array(lengths)[:, None]).astype(np.int64)
    return Batch({"attention_mask": mask})


def test_sampled_tokens_are_real_bounded_and_reproducible():
    batches = [batch(40, 3), batch(0, 17)]
    first = sampled_positions(batches, 25, seed=1)
    assert sum(int(p.sum()) for p in first) == 25
    assert all(not p[~b.mask].any() for p, b in zip(first, batches, strict=True))
    for a, b in zip(first, sampled_positions(batches, 25, seed=1), strict=True):
        np.testing.assert_array_equal(a, b)
    everything = sampled_positions(batches, 1000, seed=1)
    assert sum(int(p.sum()) for p in everything) == 60


def test_short_sequences_count_like_long_ones():
    batches = [batch(*[40] * 50), batch(*[2] * 50)]
    long, short = sampled_positions(batches, 60, seed=0)
    assert 20 <= short.sum() <= 40
    assert short.sum() + long.sum() == 60


def test_the_default_length_is_one_that_the_model_has():
    """Text towers and models for microcontrollers have fewer positions than 128."""
    lengths = [replace(INFO, max_sequence_length=n).length(None) for n in (64, 512, None)]
    assert lengths == [64, 128, 128] and INFO.length(5) == 5
    model = SimpleNamespace(info=INFO, tokenizer={})
    (batch,) = batches_of(model, ["word " * 200], CalibrationOptions().observation, Words())
    assert batch.inputs["input_ids"].shape == (8, 64)
