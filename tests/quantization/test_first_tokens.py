"""Grids that have the first tokens of texts among their numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ibert_tvm.quantization import CalibrationOptions, calibrate
from ibert_tvm.quantization.observers import RangeForm, Statistics, choose_range
from ibert_tvm.quantization.table import TableBuilder
from ibert_tvm.relay_passes.canonical import FloatModel
from ibert_tvm.relay_passes.integer.evaluate import evaluate_all
from ibert_tvm.relay_passes.integer.relax_ops import read_program
from ibert_tvm.relay_passes.lower import lower_to_integer
from ibert_tvm.relay_passes.quantization_table import WIDE_RANGE, QuantizationTable
from tests.quantization.models import random_batches, random_model

OPTIONS = CalibrationOptions(
    observer="minmax",
    alphas=(0.5,),
    compensate=False,
    centre=True,
    channel_zero_points=True,
    value_offsets=True,
    wide_values=True,
    first_tokens=True,
)
FIRST = "embeddings.LayerNorm"
VALUES = [f"encoder.layer.{layer}.attention.self.value" for layer in range(2)]


def batches(count: int, seed: int = 0) -> list[dict[str, np.ndarray]]:
    """Texts that begin with one token."""
    found = []
    for inputs in random_batches(random_model("bert"), count, seed=seed):
        ids = np.array(inputs["input_ids"])
        ids[:, 0] = 5
        found.append({**inputs, "input_ids": ids})
    return found


def table(**changes: Any) -> QuantizationTable:
    return calibrate(random_model("bert"), batches(4), None, OPTIONS.but(**changes))[0]


def statistics() -> tuple[Statistics, np.ndarray]:
    random = np.random.default_rng(1)
    values = random.normal(size=(900, 7)).astype(np.float32)
    first = random.uniform(-1, 1, 7) + random.normal(size=(40, 7)) * 0.001
    seen = Statistics()
    for part in range(2):
        rows = slice(20 * part, 20 * part + 20)
        seen.update(values, values.copy(), first[rows].astype(np.float32))
    return seen, first.astype(np.float32)


@pytest.mark.parametrize("observer", ["minmax", "mse"])
@pytest.mark.parametrize("splits", [None, np.array([1, 2, 1, 1, 3, 1, 1])])
def test_their_mean_is_not_rounded(observer: str, splits: np.ndarray | None) -> None:
    seen, first = statistics()
    quant = choose_range(seen, observer, form=RangeForm(splits=splits, centred=True, in_phase=True))
    mean = first.mean(axis=0, dtype=np.float64)
    np.testing.assert_allclose(quant.dequantize(quant.quantize(mean)), mean, rtol=0, atol=1e-12)
    plain = choose_range(seen, observer, form=RangeForm(splits=splits, centred=True))
    assert np.abs(plain.dequantize(plain.quantize(mean)) - mean).max() > 0.2 * plain.scale
    # Steps as the search counts them are those of the integers.
    values = seen.sample[:50] / quant.channel_scale
    expected = quant.dequantize(quant.quantize(seen.sample[:50])) / quant.channel_scale
    np.testing.assert_allclose(quant.rounded(values), expected, rtol=0, atol=1e-9)


def test_statistics_of_them_move_with_an_offset() -> None:
    seen, first = statistics()
    np.testing.assert_allclose(seen.first, first.mean(axis=0), rtol=1e-5)
    deviation = first.astype(np.float64).std(axis=0)
    np.testing.assert_allclose(seen.first_deviation, deviation, rtol=1e-5)
    seen.shift(np.full(7, 3.0))
    np.testing.assert_allclose(seen.first, first.mean(axis=0) - 3, rtol=1e-5)
    np.testing.assert_allclose(seen.first_deviation, deviation, rtol=1e-5)
    nothing = Statistics()
    nothing.update(first, first.copy())
    assert nothing.first is None
    assert nothing.first_deviation is None


def errors_of_first_tokens(chosen: QuantizationTable, name: str) -> np.ndarray:
    """What their 8-bit form is beside the float model's value, in steps, of all channels."""
    model = random_model("bert")
    lowered = lower_to_integer(model.module, model.parameters, chosen)
    program = read_program(lowered.module)
    inputs = batches(1, seed=3)[0]
    given = {key: inputs[key] for key in program.inputs}
    _, made = evaluate_all(program, given, lowered.parameters)
    form = next(f for f in lowered.scales["values"][name] if f["form"] == "matmul")
    steps = made[form["value"]] - np.asarray(form["zero_point"])
    values = FloatModel(model.module, model.parameters, [name]).run(inputs).values[name]
    exact = values[:, 0] / np.asarray(form["scale"])
    return np.abs(steps.reshape(values.shape)[:, 0] - exact)


@pytest.mark.representatives(1)
@pytest.mark.parametrize("name", [FIRST, VALUES[0]])
def test_integers_stand_for_them(name: str) -> None:
    """In front of the first layer, and in its values, all texts begin alike.

    What tables and weights lost in front of it is mended, too, up to half a step.
    """
    chosen = table(wide_values=False)
    errors = errors_of_first_tokens(chosen, name)
    assert np.median(errors) < 0.02
    assert (errors < 0.02).mean() > 0.7
    plain = errors_of_first_tokens(table(first_tokens=False, wide_values=False), name)
    assert np.median(plain) > 0.15


def test_values_have_more_bits_unless_they_are_alike_in_most_layers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In front of the first layer all texts begin alike, behind it not by a quarter of a step."""

    def wide(chosen: QuantizationTable) -> list[bool]:
        return [chosen.matmul[name].high == WIDE_RANGE[1] for name in VALUES]

    assert wide(table()) == [True, True]  # half of the layers are not most of them
    builder = TableBuilder({}, {}, "accurate", OPTIONS)
    seen, _ = statistics()
    assert builder._first_tokens_alike(seen)
    other = Statistics()
    other.update(seen.sample, seen.sample.copy(), seen.sample)
    assert not builder._first_tokens_alike(other)
    monkeypatch.setattr("ibert_tvm.quantization.table._ALIKE", 1000.0)
    assert wide(table()) == [False, False]
    assert wide(table(first_tokens=False)) == [True, True]
    monkeypatch.setattr("ibert_tvm.quantization.table._FEW_TEXTS", 10**6)
    assert wide(table()) == [True, True]
