"""A zero point per channel: each channel's range around its own centre."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ibert_tvm.quantization.observers import RangeForm, Statistics, choose_range
from ibert_tvm.quantization.options import CalibrationOptions
from ibert_tvm.quantization.smoothing import OperandForm, quantize_operand
from ibert_tvm.relay_passes.quantization_table import ActivationQuant

POINTS = np.array([0, 100, -300, 7, -1])
SPLITS = np.array([1, 4, 2, 1, 3])
SIGNED: dict[str, Any] = {"scale": 0.5, "low": -127, "high": 127, "channel_zero_point": POINTS}
UNSIGNED: dict[str, Any] = {**SIGNED, "low": 0, "high": 255, "zero_point": 9}
FORMS = [SIGNED, UNSIGNED, {**SIGNED, "splits": SPLITS}, {**UNSIGNED, "splits": SPLITS}]
IDS = ["signed", "unsigned", "signed columns", "unsigned columns"]


@pytest.mark.parametrize("form", FORMS, ids=IDS)
def test_every_step_within_reach_comes_back(form: dict[str, Any]) -> None:
    quant = ActivationQuant(**form)
    low, high = (np.broadcast_to(bound, 5) for bound in quant.reach)
    steps = np.arange(low.min() - 50, high.max() + 51)
    integers = quant.quantize(steps[:, None] * np.full(5, quant.scale))
    assert integers.min() >= quant.low
    assert integers.max() <= quant.high
    expected = np.clip(steps[:, None], low, high) * quant.scale
    np.testing.assert_array_equal(quant.dequantize(integers), expected)


def seen(values: np.ndarray) -> Statistics:
    statistics = Statistics()
    statistics.update(values.astype(np.float32), values.astype(np.float32))
    return statistics


def off_centre(tokens: int = 8000) -> np.ndarray:
    random = np.random.default_rng(3)
    centres = np.array([0.0, 3.0, -3.5, 0.4, 2.0, -1.0])
    return centres + random.uniform(-1, 1, (tokens, 6)) * [1.0, 0.5, 0.8, 1.0, 0.2, 1.0]


@pytest.mark.parametrize("observer", ["minmax", "mse"])
@pytest.mark.parametrize("unsigned", [False, True])
def test_the_scale_is_that_of_the_widest_range(observer: str, unsigned: bool) -> None:
    values = off_centre()
    quant = choose_range(seen(values), observer, form=RangeForm(unsigned=unsigned, centred=True))
    plain = choose_range(seen(values), observer, form=RangeForm(unsigned=unsigned))
    widest = 2.0 / (255 if unsigned else 254)
    if unsigned and observer == "minmax":
        widest *= 1.5 * 0.9  # what feed-forward layers yield: 1.5 times the middling range
    assert quant.scale == pytest.approx(widest, rel=0.05)
    assert plain.scale > (2 if unsigned else 4) * quant.scale
    error = np.abs(quant.dequantize(quant.quantize(values)) - values)
    assert error.max() <= quant.scale * (0.51 if observer == "minmax" else 8)


def test_a_channel_of_something_rare_goes_further_than_it_was_seen_to() -> None:
    random = np.random.default_rng(5)
    values = np.maximum(random.normal(size=(8000, 32)), -0.17)
    values[:, 3] *= 0.2  # has not met what it stands for
    low, high = seen(values).channel_ends(rare=False)
    np.testing.assert_allclose((low[3], high[3]), (values[:, 3].min(), values[:, 3].max()))
    low, high = seen(values).channel_ends(rare=True)
    middling = np.median(values.max(axis=0))
    assert 1.3 * middling < high[3] < 1.7 * middling
    assert low.min() > -1.0  # nothing lies below: little is lost there
    met = values.copy()
    met[0, 3] = 1.3 * middling
    quant = choose_range(seen(values), "minmax", form=RangeForm(unsigned=True, centred=True))
    error = np.abs(quant.dequantize(quant.quantize(met)) - met)
    assert error.max() <= 0.51 * quant.scale


def test_a_zero_point_goes_no_further_than_requantisation_has_room_for() -> None:
    values = off_centre() * 1e-4 + [0.0, 50.0, 0.0, 0.0, 0.0, -50.0]
    quant = choose_range(seen(values), "minmax", form=RangeForm(centred=True))
    assert np.abs(quant.zero_points).max() <= 4 * 127
    error = np.abs(quant.dequantize(quant.quantize(values)) - values)
    assert error.max() <= 0.51 * quant.scale


def test_layers_come_closer_with_them() -> None:
    random = np.random.default_rng(4)
    weights = {"layer": random.normal(size=(24, 6)).astype(np.float32)}
    errors = [
        quantize_operand(
            seen(off_centre()), weights, CalibrationOptions(), OperandForm(centred=centred)
        ).error
        for centred in (False, True)
    ]
    assert errors[1] < errors[0] / 1.4
