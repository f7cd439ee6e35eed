"""A text has the same bits whatever it is batched with, and however far it is padded."""

from __future__ import annotations

import numpy as np
import pytest

from ibert_tvm.model.artefact import QuantizedModel
from ibert_tvm.quantization import FIDELITIES, CalibrationOptions, quantize
from ibert_tvm.quantization.options import ROW_SCALES
from ibert_tvm.relay_passes.integer.evaluate import evaluate
from tests.quantization.models import random_batches, random_model

LENGTHS = (1, 2, 3, 5, 8, 13, 21, 2, 1, 17)


def texts(vocabulary: int) -> list[np.ndarray]:
    random = np.random.default_rng(11)
    return [random.integers(4, vocabulary, length) for length in LENGTHS]


def vectors(model: QuantizedModel, ids: list[np.ndarray], length: int) -> np.ndarray:
    """Integers of sentence embeddings of one batch, padded to a length."""
    rows, mask = (np.zeros((len(ids), length), np.int32) for _ in range(2))
    for row, text in enumerate(ids):
        rows[row, : len(text)], mask[row, : len(text)] = text, 1
    given = {"input_ids": rows, "attention_mask": mask, "token_type_ids": np.zeros_like(rows)}
    inputs = {name: given[name] for name in model.input_names}
    return np.asarray(evaluate(model.program, inputs, model.parameters)[0])


def check(model: QuantizedModel) -> None:
    every = texts(model.info.vocab_size)
    alone = [vectors(model, [text], len(text))[0] for text in every]
    assert len({one.tobytes() for one in alone}) == len(every)
    random = np.random.default_rng(12)
    for padded in (21, 24, 40):
        order = random.permutation(len(every))
        for start in range(0, len(order), 4):
            members = order[start : start + 4]
            together = vectors(model, [every[text] for text in members], padded)
            for row, text in zip(together, members, strict=True):
                np.testing.assert_array_equal(row, alone[text])


@pytest.mark.representatives(1)
@pytest.mark.parametrize("fidelity", FIDELITIES)
def test_of_every_fidelity(fidelity: str) -> None:
    model = random_model("bert")
    check(quantize(model, random_batches(model, 2), fidelity=fidelity))


@pytest.mark.slow
@pytest.mark.representatives(1)
@pytest.mark.parametrize("row_scales", ROW_SCALES)
def test_with_scales_per_token(row_scales: str) -> None:
    model = random_model("bert")
    options = CalibrationOptions(row_scales=row_scales, split_share=1 / 3)
    check(quantize(model, random_batches(model, 2), options=options))
