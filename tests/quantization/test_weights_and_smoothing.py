"""Integer weights: scales, rounding, compensation, smoothing."""

from __future__ import annotations

import numpy as np
import pytest

from ibert_tvm.quantization.observers import Statistics
from ibert_tvm.quantization.options import CalibrationOptions
from ibert_tvm.quantization.routines import cholesky_factor
from ibert_tvm.quantization.smoothing import OperandForm, channel_divisor, quantize_operand
from ibert_tvm.quantization.weights import (
    _unit_factor,
    compensated_rounding,
    nearest,
    quantize_embedding,
    row_scales,
)

RANDOM = np.random.default_rng(0)


def correlated(tokens: int, channels: int) -> np.ndarray:
    """Inputs that lie near a subspace, as activations do."""
    mixed = RANDOM.normal(size=(tokens, channels // 3)) @ RANDOM.normal(
        size=(channels // 3, channels)
    )
    return (mixed + 0.1 * RANDOM.normal(size=(tokens, channels))).astype(np.float32)


def test_row_scales_reach_the_largest_weight_without_clipping():
    weight = np.array([[0.5, -2.54], [0.1, 0.2]], np.float32)
    np.testing.assert_allclose(row_scales(weight), [2.54 / 127, 0.2 / 127], rtol=1e-6)
    assert np.abs(nearest(weight, row_scales(weight))).max() == 127


def test_rows_that_vanish_keep_a_usable_scale():
    weight = np.array([[1.27, 1.0], [0.0, 0.0], [1e-9, 0.0]], np.float32)
    scale = row_scales(weight)
    np.testing.assert_allclose(scale, np.array([1.27, 1.27 / 1024, 1.27 / 1024]) / 127, rtol=1e-6)
    assert not nearest(weight, scale)[1:].any()


def test_a_matrix_of_zeros_has_positive_scales():
    assert (row_scales(np.zeros((3, 4), np.float32)) > 0).all()


def test_clipping_helps_when_the_large_weight_meets_small_inputs():
    weight = RANDOM.normal(size=(4, 64)).astype(np.float32)
    weight[:, 0] = 8.0
    energy = np.ones(64, np.float32)
    energy[0] = 1e-6
    scale = row_scales(weight, energy)
    assert (scale < row_scales(weight)).all()


def test_what_single_precision_cannot_factor_double_precision_does():
    numbers = np.random.default_rng(0).integers(2000, 4000, 200)
    moments = (np.outer(numbers, numbers) + np.eye(200)).astype(np.float32)  # exact: below 2^24
    with pytest.raises(np.linalg.LinAlgError):
        cholesky_factor(np.asfortranarray(moments))
    np.testing.assert_array_equal(_unit_factor(moments), _unit_factor(moments.astype(np.float64)))


def test_compensation_lowers_the_error_of_the_outputs():
    inputs = correlated(400, 96)
    weight = RANDOM.normal(size=(32, 96)).astype(np.float32)
    scale = row_scales(weight) * 8  # 4 bits, so that the difference is large

    def error(integers: np.ndarray) -> float:
        output = inputs @ (integers * scale[:, None]).T.astype(np.float32)
        return float(np.linalg.norm(output - inputs @ weight.T))

    plain, compensated = nearest(weight, scale), compensated_rounding(weight, scale, inputs)
    assert compensated.dtype == np.int8
    assert np.abs(compensated).max() <= 127
    assert error(compensated) < 0.6 * error(plain)


def test_compensation_without_inputs_is_rounding_to_the_nearest():
    weight = RANDOM.normal(size=(5, 70)).astype(np.float32)
    scale = row_scales(weight)
    np.testing.assert_array_equal(
        compensated_rounding(weight, scale, np.zeros((3, 70), np.float32)), nearest(weight, scale)
    )


def test_compensation_with_independent_inputs_is_rounding_to_the_nearest():
    weight = RANDOM.normal(size=(5, 70)).astype(np.float32)
    scale = row_scales(weight)
    inputs = np.eye(70, dtype=np.float32)
    np.testing.assert_array_equal(
        compensated_rounding(weight, scale, inputs), nearest(weight, scale)
    )


def test_embeddings_have_a_scale_per_row_or_one():
    table = np.array([[1.27, 0.0], [0.0127, 0.0], [0.0, 0.0]], np.float32)
    rows = quantize_embedding(table, per_row=True)
    np.testing.assert_array_equal(rows.values, [[127, 0], [127, 0], [0, 0]])
    whole = quantize_embedding(table, per_row=False)
    np.testing.assert_array_equal(whole.values, [[127, 0], [1, 0], [0, 0]])
    assert np.ptp(whole.scale) == 0


def test_divisors_have_a_geometric_mean_of_one_and_a_bounded_spread():
    divisor = channel_divisor(np.array([1e-3, 1.0, 1e6]), np.array([1.0, 1.0, 1.0]), 0.8)
    assert np.exp(np.log(divisor).mean()) == pytest.approx(1.0, rel=0.7)
    assert divisor.max() / divisor.min() <= 2**10 * (1 + 1e-9)
    dead = channel_divisor(np.array([0.0, 1.0]), np.array([0.0, 0.0]), 0.5)
    assert np.isfinite(dead).all()
    assert (dead > 0).all()


def operand(values: np.ndarray) -> Statistics:
    statistics = Statistics()
    statistics.update(values.astype(np.float32), values.astype(np.float32))
    return statistics


def outliers() -> np.ndarray:
    values = RANDOM.normal(size=(600, 64))
    values[:, 5] *= 60
    values[:, 40] *= 30
    return values


def output_error(values, weights, quant) -> float:
    integers = quant.activation.quantize(values) - quant.activation.zero_point
    total = 0.0
    for name, weight in weights.items():
        rows = quant.weights[name]
        output = integers @ rows.values.T.astype(np.int64) * quant.activation.scale * rows.scale
        expected = values @ weight.T
        total += np.linalg.norm(output - expected) ** 2 / np.linalg.norm(expected) ** 2
    return total / len(weights)


def test_smoothing_is_chosen_where_channels_differ_and_helps():
    values = outliers()
    weights = {n: RANDOM.normal(size=(32, 64)).astype(np.float32) for n in ("q", "k")}
    options = CalibrationOptions(compensate=False)
    smooth = quantize_operand(operand(values), weights, options)
    plain = quantize_operand(operand(values), weights, options, OperandForm(smooth=False))
    assert smooth.alpha > 0
    assert plain.alpha == 0
    assert plain.activation.channel_divisor is None
    better, worse = (output_error(values, weights, q) for q in (smooth, plain))
    assert better < 0.5 * worse
    assert smooth.error == pytest.approx(better, rel=0.3)


def test_the_divisor_is_in_the_weights():
    values = outliers()
    weights = {"up": RANDOM.normal(size=(8, 64)).astype(np.float32)}
    quant = quantize_operand(operand(values), weights, CalibrationOptions(compensate=False))
    divisor = quant.activation.channel_divisor
    assert divisor is not None
    step = quant.weights["up"].scale[:, None]
    error = np.abs(quant.weights["up"].dequantize() - weights["up"] * divisor)
    unclipped = np.abs(weights["up"] * divisor) < 127 * step
    assert (error[unclipped] <= np.broadcast_to(step, error.shape)[unclipped] * 0.5001).all()


def test_each_layer_gets_its_own_rows():
    weights = {"a": np.eye(4, dtype=np.float32), "b": -np.eye(4, dtype=np.float32)[:2]}
    quant = quantize_operand(
        operand(RANDOM.normal(size=(50, 4))), weights, CalibrationOptions(compensate=False)
    )
    assert {n: w.values.shape for n, w in quant.weights.items()} == {"a": (4, 4), "b": (2, 4)}
    assert (np.diag(quant.weights["a"].values) > 0).all()
    assert (np.diag(quant.weights["b"].values) < 0).all()
