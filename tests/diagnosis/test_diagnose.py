"""A defect that was put into a model is found, and what would help is said."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest

from ibert_tvm.diagnosis import Diagnosis
from ibert_tvm.diagnosis.measurements import _batches, _Diagnosis
from ibert_tvm.frontend import CanonicalModel
from ibert_tvm.model.artefact import QuantizedModel
from ibert_tvm.quantization.options import CalibrationOptions
from ibert_tvm.quantization.post_training import calibrate
from ibert_tvm.relay_passes.integer.relax_ops import read_program
from ibert_tvm.relay_passes.lower import lower_to_integer
from tests.quantization.models import random_batches, random_model

BAD = "encoder.layer.1.attention.self"
TEXTS = ["one", "two", "three", "four"]


@cache
def clipped() -> tuple[CanonicalModel, QuantizedModel]:
    """A BERT of which one range ends at two fifths of what it should reach."""
    model = random_model("bert")
    table, _ = calibrate(model, random_batches(model, 3), None, CalibrationOptions())
    good = table.matmul[BAD]
    matmul = {**table.matmul, BAD: replace(good, low=good.low * 2 // 5, high=good.high * 2 // 5)}
    lowered = lower_to_integer(model.module, model.parameters, replace(table, matmul=matmul))
    return model, QuantizedModel(
        read_program(lowered.module),
        lowered.parameters,
        model.info,
        {"preset": "accurate", **lowered.scales},
    )


def run(stop: int | None = None) -> tuple[Diagnosis, list[tuple[int, int]]]:
    model, quantised = clipped()
    inputs = random_batches(model, 1, seed=3)[0]
    seen: list[tuple[int, int]] = []

    def progress(done: int, total: int) -> None:
        seen.append((done, total))
        if done == stop:
            raise KeyboardInterrupt

    batches = [(np.arange(4), inputs)]
    return _Diagnosis(quantised, model, batches, progress).run(TEXTS), seen


@pytest.fixture(scope="module")
def found() -> Diagnosis:
    result, seen = run()
    assert result.complete
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1][0] == seen[-1][1]
    return result


def test_the_defect_is_the_largest_loss(found: Diagnosis) -> None:
    first = found.losses[0]
    assert (first.what, first.where) == ("rounding", "attention → linear → add")
    assert first.places == 2
    assert first.alone is not None
    assert first.without is not None
    assert first.alone > 0.5 * found.error
    assert first.without < 0.5 * found.error


def test_the_value_is_named(found: Diagnosis) -> None:
    values = {value.value: value for value in found.values if value.alone is not None}
    worst = max(values, key=lambda name: values[name].alone or 0.0)
    assert worst == BAD
    assert values[BAD].clipped > 0.02
    assert max(v.clipped for v in found.values if v.value != BAD) < values[BAD].clipped
    others = [v.rounding_snr for v in found.values if v.form == "matmul" and v.value != BAD]
    assert values[BAD].rounding_snr is not None
    assert values[BAD].rounding_snr < min(other for other in others if other is not None)


def test_the_worst_texts_say_what_clips(found: Diagnosis) -> None:
    assert [text.error for text in found.worst] == sorted(
        (text.error for text in found.worst), reverse=True
    )
    assert found.worst[0].error == found.error_max
    assert found.worst[0].text in TEXTS
    assert (found.worst[0].value, found.worst[0].clipped_value) == (BAD, BAD)


def test_what_would_help_was_tried(found: Diagnosis) -> None:
    best = found.suggestions[0]
    assert best.change.startswith("ranges 1.25 times as wide where values are clipped")
    assert best.error < 0.8 * found.error
    assert any("--fidelity default" in item.change for item in found.suggestions)


def test_the_document_is_plain(found: Diagnosis) -> None:
    document = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert document["losses"][0]["where"] == "attention → linear → add"
    assert document["texts"] == 4


def test_interrupted_it_says_what_is_known(found: Diagnosis) -> None:
    result, _ = run(stop=6)
    assert not result.complete
    assert result.error == found.error
    assert (result.rounding, result.computing) == (found.rounding, found.computing)
    assert 0 < sum(loss.alone is not None for loss in result.losses) < 5
    assert result.suggestions == ()


def test_texts_of_like_length_share_a_batch() -> None:
    lengths = np.array([3, 300, 5, 4, 250, 200])
    mask = (np.arange(300) < lengths[:, None]).astype(np.int32)
    tokens = SimpleNamespace(input_ids=mask * 7, attention_mask=mask, token_type_ids=mask * 0)
    batches = list(_batches(tokens))  # type: ignore[arg-type]
    assert [rows.tolist() for rows, _ in batches] == [[0, 3, 2], [5, 4], [1]]
    for rows, inputs in batches:
        assert inputs["input_ids"].shape == (len(rows), lengths[rows].max())
        np.testing.assert_array_equal(inputs["attention_mask"].sum(axis=1), lengths[rows])
