"""The quantisation table: meaning, validation, round trip."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ibert_tvm.relay_passes.quantization_table import (
    ActivationQuant,
    QuantizationTable,
    QuantizationTableError,
    WeightQuant,
)


def test_quantize_rounds_half_up_and_clamps():
    quant = ActivationQuant(0.5, -127, 127)
    values = np.array([0.0, 0.24, 0.25, -0.25, 0.75, 63.5, 80.0, -80.0])
    np.testing.assert_array_equal(quant.quantize(values), [0, 0, 1, 0, 2, 127, 127, -127])


def test_zero_point_and_divisor_cancel_on_the_way_back():
    quant = ActivationQuant(0.25, 0, 255, 17, np.array([2.0, 0.5]))
    np.testing.assert_array_equal(quant.channel_scale, [0.5, 0.125])
    integers = quant.quantize(np.array([[1.0, 1.0], [0.0, -10.0]]))
    np.testing.assert_array_equal(integers, [[19, 25], [17, 0]])
    np.testing.assert_array_equal(quant.dequantize(integers), [[1.0, 1.0], [0.0, -2.125]])


@given(st.floats(1e-6, 1e3), st.integers(-127, 127))
def test_every_integer_survives_a_round_trip(scale, integer):
    quant = ActivationQuant(scale, -127, 127)
    assert quant.quantize(quant.dequantize(np.array([integer])))[0] == integer


BAD = {
    "scale": lambda: ActivationQuant(0.0, -127, 127),
    "empty range": lambda: ActivationQuant(1.0, 3, 3, 3),
    "zero point": lambda: ActivationQuant(1.0, 0, 255, -1),
    "divisor": lambda: ActivationQuant(1.0, 0, 255, 0, np.array([1.0, np.inf])),
    "divisor shape": lambda: ActivationQuant(1.0, 0, 255, 0, np.ones((2, 2))),
    "weight type": lambda: WeightQuant(np.ones((2, 2), np.int32), np.ones(2)),
    "weight rows": lambda: WeightQuant(np.ones((2, 2), np.int8), np.ones(3)),
    "preset": lambda: QuantizationTable("best"),
    "wide operand": lambda: QuantizationTable("paper", {"a": ActivationQuant(1.0, -127, 128)}),
    "stream": lambda: QuantizationTable("paper", {}, {"a": ActivationQuant(1.0, 0, 255, 1)}),
    "wide stream": lambda: QuantizationTable("paper", {}, {"a": ActivationQuant(1.0, -1, 2**20)}),
    "grid": lambda: QuantizationTable("paper", grids={"a": ActivationQuant(1.0, 0, 255, 1)}),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_table_is_refused_with_the_reason(case, messages):
    with messages.raises(QuantizationTableError):
        BAD[case]()
