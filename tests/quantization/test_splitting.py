"""Channels with outliers, split into columns of one scale."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ibert_tvm.quantization.observers import Statistics
from ibert_tvm.quantization.options import CalibrationOptions
from ibert_tvm.quantization.smoothing import (
    OperandForm,
    extra_columns,
    quantize_operand,
    split_channels,
)
from ibert_tvm.relay_passes.quantization_table import MOST_COLUMNS, ActivationQuant

SPLITS = np.array([1, 4, 2, 1, MOST_COLUMNS])
SIGNED: dict[str, Any] = {"scale": 0.5, "low": -127, "high": 127}
UNSIGNED: dict[str, Any] = {"scale": 0.5, "low": 0, "high": 255, "zero_point": 9}


@pytest.mark.parametrize("form", [SIGNED, UNSIGNED], ids=["signed", "unsigned"])
def test_columns_add_up_to_every_step_within_reach(form: dict[str, Any]) -> None:
    quant = ActivationQuant(**form, splits=SPLITS)
    low, high = quant.reach
    steps = np.arange(low.min() - 50, high.max() + 51)
    integers = quant.quantize(steps[:, None] * np.full(5, quant.scale))
    assert integers.shape == (steps.size, SPLITS.sum())
    assert integers.min() >= quant.low
    assert integers.max() <= quant.high
    for channel in range(5):
        columns = integers[:, quant.columns == channel]
        assert columns.shape[1] == SPLITS[channel]
        expected = np.clip(steps, low[channel], high[channel])
        np.testing.assert_array_equal(columns.sum(axis=1) - quant.zero_point, expected)
    np.testing.assert_array_equal(
        quant.dequantize(integers), np.clip(steps[:, None], low, high) * quant.scale
    )


def test_a_channel_of_one_column_is_what_it_is_without_splits() -> None:
    values = np.random.default_rng(0).normal(0, 30, (50, 5))
    for form in (SIGNED, UNSIGNED):
        split = ActivationQuant(**form, splits=np.ones(5, np.int64))
        np.testing.assert_array_equal(
            split.quantize(values), ActivationQuant(**form).quantize(values)
        )


def test_the_largest_parts_are_made_small() -> None:
    assert split_channels(np.array([1.0, 100.0, 30.0]), 0) is None
    splits = split_channels(np.array([1.0, 100.0, 30.0]), 10)
    assert splits is not None
    assert splits.tolist() == [1, 9, 3]
    one = split_channels(np.array([1.0, 1e9, 2.0]), 40)
    assert one is not None
    assert one.sum() == 43
    assert one.max() == MOST_COLUMNS


def test_columns_are_added_in_whole_vectors() -> None:
    assert CalibrationOptions().forms.split_share == 0
    assert [extra_columns(n, 1 / 48) for n in (64, 767, 768, 1536, 3072)] == [0, 0, 16, 32, 64]


def test_outliers_no_longer_cost_the_others_their_precision() -> None:
    random = np.random.default_rng(1)
    x = np.abs(random.normal(size=(600, 64))).astype(np.float32)
    x[::50, 3] *= 80
    x[::70, 40] *= 30
    weights = {"layer": random.normal(size=(24, 64)).astype(np.float32)}
    target = x @ weights["layer"].T

    def error(columns: int) -> float:
        statistics = Statistics()
        statistics.update(x, x.copy())
        options = CalibrationOptions(observer="minmax")
        quant = quantize_operand(
            statistics, weights, options, OperandForm(unsigned=True, columns=columns)
        )
        weight = quant.weights["layer"]
        assert weight.values.shape == (24, 64 + columns)
        steps = quant.activation.quantize(x)
        if columns:
            np.testing.assert_array_equal(
                weight.values[:, 64:], weight.values[:, quant.activation.columns[64:]]
            )
            # One zero point for each channel.
            steps[:, :64] -= quant.activation.zero_point
        else:
            steps -= quant.activation.zero_point
        got = steps @ weight.values.T.astype(np.int64) * (quant.activation.scale * weight.scale)
        return float(np.median(np.linalg.norm(got - target, axis=1)))

    assert error(16) < 0.4 * error(0)
