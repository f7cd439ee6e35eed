"""Sentence encoders from a folder to the loaded library: integers, padding, fidelity."""

from __future__ import annotations

import numpy as np
import pytest

from ibert_tvm.relay_passes.integer.evaluate import evaluate
from tests.examples import examples
from tests.integration.sentence_model import MODULES, inputs, sentence_model

PRESETS = ("accurate", "paper")
CASES = examples(
    [(name, preset) for name in MODULES for preset in PRESETS],
    ("every pooling", "accurate"),
    unpack=True,
)


@pytest.mark.slow
@pytest.mark.parametrize("name", examples(MODULES, "every pooling"))
def test_padding_behind_and_company_change_nothing(name: str) -> None:
    model = sentence_model(name)
    together = inputs(3, 13, 1, 6)
    (found,) = evaluate(model.module, together, model.parameters)
    alone = {key: array[-1:, :6] for key, array in together.items()}
    (wanted,) = evaluate(model.module, alone, model.parameters)
    np.testing.assert_array_equal(found[-1:, :6] if found.ndim == 3 else found[-1:], wanted)


@pytest.mark.slow
@pytest.mark.parametrize("name", examples(["last token", "late interaction"], "last token"))
def test_vectors_have_length_one_at_a_fixed_scale(name: str) -> None:
    model = sentence_model(name)
    assert model.quantization["outputs"][0]["scale"] == 2.0**-15
    arrays = inputs(2, 9, 5)
    (found,) = evaluate(model.module, arrays, model.parameters)
    length = np.linalg.norm(found * 2.0**-15, axis=-1)
    np.testing.assert_allclose(length, 1, atol=2e-4)


def test_a_text_without_tokens_is_a_row_of_zeros() -> None:
    model = sentence_model("last token")
    (found,) = evaluate(model.module, inputs(2, 9, 5, 0), model.parameters)
    assert not found.any()
