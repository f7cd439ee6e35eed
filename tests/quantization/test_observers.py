"""Statistics of calibration and the ranges that observers choose from them."""

from __future__ import annotations

import numpy as np
import pytest

from ibert_tvm.quantization.observers import RangeForm, Statistics, choose_range

RANDOM = np.random.default_rng(0)


def seen(*parts: np.ndarray) -> Statistics:
    statistics = Statistics()
    for part in parts:
        statistics.update(part.astype(np.float32), part.astype(np.float32))
    return statistics


def test_extremes_stream_over_all_tokens_and_rows_are_kept_in_order():
    a, b = np.array([[1.0, -2.0], [0.5, 3.0]]), np.array([[-4.0, 0.0]])
    statistics = Statistics()
    statistics.update(a.astype(np.float32), a[:1].astype(np.float32))
    statistics.update(b.astype(np.float32), b[:0].astype(np.float32))
    np.testing.assert_array_equal(statistics.low, [-4.0, -2.0])
    np.testing.assert_array_equal(statistics.high, [1.0, 3.0])
    np.testing.assert_array_equal(statistics.channel_magnitude, [4.0, 3.0])
    assert statistics.magnitude == 4.0
    np.testing.assert_array_equal(statistics.sample, a[:1])


def test_minmax_clips_nothing():
    quant = choose_range(seen(np.array([[-1.0, 5.08], [2.0, -3.0]])), "minmax")
    assert (quant.low, quant.high, quant.zero_point) == (-127, 127, 0)
    assert quant.scale == pytest.approx(5.08 / 127)


def test_minmax_uses_extremes_that_the_sample_has_not():
    statistics = Statistics()
    statistics.update(np.array([[100.0]], np.float32), np.zeros((0, 1), np.float32))
    statistics.update(np.array([[1.0]], np.float32), np.array([[1.0]], np.float32))
    assert choose_range(statistics, "minmax").scale == pytest.approx(100 / 127)


def test_percentile_ignores_a_rare_outlier():
    values = RANDOM.normal(size=(1000, 8))
    values[3, 3] = 1000.0
    quant = choose_range(seen(values), "percentile", percentile=99.0)
    expected = np.percentile(np.abs(values[np.abs(values) < 100]), 99.0)
    assert quant.scale * 127 == pytest.approx(expected, rel=0.1)
    assert choose_range(seen(values), "percentile", percentile=100.0).scale == pytest.approx(
        1000 / 127, rel=1e-6
    )


def test_mse_is_never_worse_than_minmax_and_better_with_an_outlier():
    values = RANDOM.normal(size=(500, 16))
    values[7, 2] = 20.0

    def error(observer: str) -> float:
        quant = choose_range(seen(values), observer)
        return float(((quant.dequantize(quant.quantize(values)) - values) ** 2).mean())

    assert error("mse") < error("minmax")


def test_unsigned_range_spends_its_integers_on_both_sides_of_zero():
    values = np.linspace(-0.17, 5.0, 1000).reshape(500, 2)
    quant = choose_range(seen(values), "minmax", form=RangeForm(unsigned=True))
    assert (quant.low, quant.high) == (0, 255)
    assert quant.zero_point == 9
    reached = quant.quantize(values)
    assert (reached.min(), reached.max()) == (1, 255)
    worst = np.abs(quant.dequantize(reached) - values).max()
    assert worst <= 0.51 * quant.scale + 1e-9


def test_unsigned_range_of_positive_values_has_zero_point_zero():
    quant = choose_range(seen(np.array([[0.0, 2.55]])), "minmax", form=RangeForm(unsigned=True))
    assert quant.zero_point == 0
    assert quant.scale == pytest.approx(0.01)


def test_unsigned_range_of_negative_values_still_holds_zero():
    quant = choose_range(seen(np.array([[-1.0, -0.5]])), "minmax", form=RangeForm(unsigned=True))
    assert quant.quantize(np.zeros(1))[0] == quant.zero_point


def test_a_divisor_equalises_channels():
    values = RANDOM.normal(size=(300, 2)) * np.array([100.0, 1.0])
    divisor = np.array([10.0, 0.1])
    quant = choose_range(seen(values), "minmax", form=RangeForm(divisor=divisor))
    np.testing.assert_array_equal(quant.channel_divisor, divisor)
    largest = np.abs(quant.quantize(values)).max(axis=0)
    assert largest.max() == 127
    assert largest.min() > 90


def test_a_value_that_is_always_zero_still_has_a_scale():
    for unsigned in (False, True):
        quant = choose_range(seen(np.zeros((4, 3))), "mse", form=RangeForm(unsigned=unsigned))
        np.testing.assert_array_equal(quant.quantize(np.zeros(3)), quant.zero_point)
