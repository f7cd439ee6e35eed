"""Shapes, inputs and expected outputs of the small BERT of this folder."""

from __future__ import annotations

import numpy as np

from tests.arm.small_bert import VOCABULARY, expected

__all__ = ["SHAPES", "assert_equal", "expected", "inputs_of"]

SHAPES = [(1, 32), (2, 16), (3, 7)]


def inputs_of(batch: int, seq_len: int, seed: int, padding: bool) -> dict[str, np.ndarray]:
    """Random ids; with padding, rows of different lengths, one of them empty."""
    random = np.random.default_rng(seed)
    mask = np.ones((batch, seq_len), "int32")
    if padding:
        mask[-1, max(1, seq_len // 2) :] = 0
        if batch > 1:
            mask[1] = 0
    return {
        "input_ids": random.integers(0, VOCABULARY, (batch, seq_len)).astype("int32"),
        "attention_mask": mask,
        "token_type_ids": random.integers(0, 2, (batch, seq_len)).astype("int32"),
    }


def assert_equal(got: list[np.ndarray], want: list[np.ndarray]) -> None:
    assert len(got) == len(want)
    for one, other in zip(got, want, strict=True):
        np.testing.assert_array_equal(one, other)
