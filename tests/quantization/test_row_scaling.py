"""Scales per token: where calibration takes them, and what tables and lowering refuse."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from ibert_tvm.quantization import row_scaling
from ibert_tvm.quantization.observers import Statistics
from ibert_tvm.quantization.options import CalibrationOptions
from ibert_tvm.quantization.smoothing import OperandForm, quantize_operand


def statistics(spread: float) -> tuple[Statistics, dict[str, np.ndarray]]:
    """Tokens whose sizes differ by up to a factor, and a layer that reads them."""
    random = np.random.default_rng(0)
    rows = random.uniform(-1, 1, (400, 48)) * spread ** random.uniform(0, 1, (400, 1))
    seen = Statistics(rows.min(axis=0), rows.max(axis=0), [rows.astype(np.float32)])
    return seen, {"layer": random.normal(size=(24, 48)).astype(np.float32)}


@pytest.mark.parametrize(("spread", "wanted"), [(1.0, False), (50.0, True)])
def test_a_scale_per_token_is_taken_where_tokens_differ(spread: float, wanted: bool) -> None:
    seen, weights = statistics(spread)
    options = CalibrationOptions(row_scales="auto", alphas=(0.0,), observer="minmax")
    chosen = quantize_operand(seen, weights, options, OperandForm(may_be_by_row=True))
    assert chosen.activation.by_row is wanted
    # What may not have one has none, whatever is asked for.
    always = options.but(row_scales="always")
    assert quantize_operand(
        seen, weights, always, OperandForm(may_be_by_row=True)
    ).activation.by_row
    assert not quantize_operand(seen, weights, always).activation.by_row


def test_the_error_falls_with_a_scale_per_token() -> None:
    seen, weights = statistics(50.0)
    errors = [
        quantize_operand(
            seen, weights, CalibrationOptions(row_scales=mode), OperandForm(may_be_by_row=True)
        ).error
        for mode in ("never", "auto", "always")
    ]
    assert all(a >= b for a, b in pairwise(errors))
    assert errors[2] < errors[0] / 3


def test_steps_of_a_row_are_parts_of_its_largest() -> None:
    steps = np.array([[127, 50, -1], [16383, 64, -8192], [0, 0, 0]], np.float32)
    found = row_scaling.effective_steps(steps)
    np.testing.assert_array_equal(found[0], steps[0])
    np.testing.assert_allclose(found[1], [16383, 0, -64 * 16383 / 127], rtol=1e-6)
    assert not found[2].any()
