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
    "no text": (
        lambda: batches_of_texts([], Words(), INFO, 64),
        "there is no calibration text\n"
        "  why: the list is empty\n"
        "  what to do: give texts like those of later use; some dozens serve",
    ),
    "only empty texts": (
        lambda: batches_of_texts([" ", "\t"], Words(), INFO, 64),
        "there is no calibration text\n"
        "  why: all 2 texts are empty\n"
        "  what to do: give texts like those of later use; some dozens serve",
    ),
    "too long": (
        lambda: batches_of_texts(["a"], Words(), INFO, 65),
        "cannot calibrate at 65 tokens\n"
        "  why: the model has positions for 64 tokens\n"
        "  what to do: use a sequence length of at most 64",
    ),
    "foreign tokenizer": (
        lambda: batches_of_texts(["a" * 120], Words(), INFO, 64),
        "the tokenizer yields token 120\n"
        "  why: the model's vocabulary has 100 tokens\n"
        "  what to do: use the tokenizer that belongs to the model",
    ),
    "no batch": (
        lambda: batches_of_arrays([], INFO),
        "there is no calibration batch\n"
        "  why: the list is empty\n"
        "  what to do: give batches like those of later use; some dozens of sequences serve",
    ),
    "unknown input": (
        lambda: batches_of_arrays([{"input_ids": ids(1), "labels": ids(1)}], INFO),
        "unknown input 'labels'\n"
        "  where: calibration batch 0\n"
        "  why: the model takes input_ids, attention_mask, token_type_ids\n"
        "  what to do: give arrays by these names",
    ),
    "no ids": (
        lambda: batches_of_arrays([{"attention_mask": ids(1)}], INFO),
        "input_ids are missing\n"
        "  where: calibration batch 0\n"
        "  why: the model takes input_ids, attention_mask, token_type_ids\n"
        "  what to do: give arrays by these names",
    ),
    "float ids": (
        lambda: batches_of_arrays([{"input_ids": np.ones((1, 2))}], INFO),
        "input_ids is float64 of shape (1, 2)\n"
        "  where: calibration batch 0\n"
        "  why: all inputs are integers of one shape [batch, seq_len], not empty\n"
        "  what to do: pad the sequences of a batch to one length",
    ),
    "shapes": (
        lambda: batches_of_arrays([{"input_ids": ids(1, 2), "attention_mask": ids(1)}], INFO),
        "attention_mask is int64 of shape (1, 1)\n"
        "  where: calibration batch 0\n"
        "  why: all inputs are integers of one shape [batch, seq_len], not empty\n"
        "  what to do: pad the sequences of a batch to one length",
    ),
    "long arrays": (
        lambda: batches_of_arrays([{"input_ids": np.ones((1, 65), np.int64)}], INFO),
        "cannot calibrate at 65 tokens\n"
        "  why: the model has positions for 64 tokens\n"
        "  what to do: use a sequence length of at most 64",
    ),
    "unknown token": (
        lambda: batches_of_arrays([{"input_ids": ids(1)}, {"input_ids": ids(3, 100)}], INFO),
        "token 100 does not exist\n"
        "  where: calibration batch 1\n"
        "  why: the model's vocabulary are 0 to 99\n"
        "  what to do: use the tokenizer that belongs to the model",
    ),
    "unknown type": (
        lambda: batches_of_arrays([{"input_ids": ids(1), "token_type_ids": ids(-1)}], INFO),
        "token type -1 does not exist\n"
        "  where: calibration batch 0\n"
        "  why: the model's types are 0 to 1\n"
        "  what to do: use the tokenizer that belongs to the model",
    ),
    "another mask": (
        lambda: batches_of_arrays([{"input_ids": ids(1, 2), "attention_mask": ids(1, 7)}], INFO),
        "attention_mask holds 7\n"
        "  where: calibration batch 0\n"
        "  why: a position is a token (1) or padding (0); a mask that is added to scores, or one "
        "of numbered sequences, means another thing\n"
        "  what to do: give 1 for tokens and 0 for padding",
    ),
    "nothing but padding": (
        lambda: batches_of_arrays([{"input_ids": ids(1), "attention_mask": ids(0)}], INFO),
        "it holds no token\n"
        "  where: calibration batch 0\n"
        "  why: its attention mask is 0 everywhere\n"
        "  what to do: leave it out",
    ),
    "observer": (
        lambda: CalibrationOptions(observer="median"),
        "unknown observer 'median'\n"
        "  why: an observer chooses the range of an activation\n"
        "  what to do: use one of: mse, minmax, percentile",
    ),
    "sequence length": (
        lambda: CalibrationOptions(seq_len=0),
        "a sequence length of 0\n"
        "  why: a sequence has at least one token\n"
        "  what to do: use a positive number",
    ),
    "percentile": (
        lambda: CalibrationOptions(percentile=0.999),
        "a percentile of 0.999\n"
        "  why: it is the percentage of values that are kept\n"
        "  what to do: use more than 50 and at most 100",
    ),
    "alphas": (
        lambda: CalibrationOptions(alphas=(1.0,)),
        "smoothing strengths (1.0,)\n"
        "  why: each lies between no smoothing (0) and moving everything to the weights (1)\n"
        "  what to do: use at least one number in [0, 1)",
    ),
    "sample": (
        lambda: CalibrationOptions(sample_tokens=0),
        "a sample of 0 tokens\n"
        "  why: scales are searched on a sample\n"
        "  what to do: use a positive number; 2048 is the default",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_unusable_calibration_is_refused_with_the_reason(case):
    make, text = REFUSED[case]
    with pytest.raises(UsageError) as caught:
        make()
    assert str(caught.value) == text


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
