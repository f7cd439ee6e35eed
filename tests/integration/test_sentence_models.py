"""Sentence encoders from a folder to the loaded library: integers, padding, fidelity."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ibert_tvm.relay_passes.integer.evaluate import evaluate
from ibert_tvm.relay_passes.integer.ranges import analyse_ranges
from ibert_tvm.relay_passes.integer.unbounded import check_unbounded
from tests.examples import examples
from tests.integration.sentence_model import MODULES, inputs, sentence_model
from tests.integration.whole_models import assert_bit_exact, build_library

PRESETS = ("accurate", "paper")
CASES = examples(
    [(name, preset) for name in MODULES for preset in PRESETS],
    ("every pooling", "accurate"),
    unpack=True,
)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "preset"), CASES)
def test_the_library_is_bit_exact(name: str, preset: str, tmp_path: Path) -> None:
    model = sentence_model(name, preset)
    library = build_library(model, [(2, 13)], tmp_path)
    for tokens in (13, 5, 1, 0):
        assert_bit_exact(library, model, inputs(2, 13, tokens, tokens))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "preset"), CASES)
def test_no_intermediate_leaves_its_interval(name: str, preset: str) -> None:
    model = sentence_model(name, preset)
    report = analyse_ranges(model.module, model.parameters, max_seq_len=24)
    arrays = {k: v.astype("int64") for k, v in inputs(2, 9, 3, 4).items()}
    assert check_unbounded(model.module, arrays, model.parameters, report.details) == []


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
