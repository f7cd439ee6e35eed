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
    "scale": (
        lambda: ActivationQuant(0.0, -127, 127),
        "the scale of an activation is 0.0\n"
        "  why: a scale is finite and greater than 0\n"
        "  what to do: a tensor that is constant 0 still needs a scale; any positive one will do",
    ),
    "empty range": (
        lambda: ActivationQuant(1.0, 3, 3, 3),
        "an activation's integer range is [3, 3]\n"
        "  why: low must be below high\n"
        "  what to do: exchange them",
    ),
    "zero point": (
        lambda: ActivationQuant(1.0, 0, 255, -1),
        "an activation's zero point is -1\n"
        "  why: it is the integer for the real 0, so it lies in [0, 255]\n"
        "  what to do: extend the calibrated range until it contains 0",
    ),
    "divisor": (
        lambda: ActivationQuant(1.0, 0, 255, 0, np.array([1.0, np.inf])),
        "the channel divisor of an activation is inf at index 1\n"
        "  why: every entry is finite and greater than 0\n"
        "  what to do: give dead channels any positive value",
    ),
    "divisor shape": (
        lambda: ActivationQuant(1.0, 0, 255, 0, np.ones((2, 2))),
        "the channel divisor of an activation has shape (2, 2)\n"
        "  why: it is one number per channel\n"
        "  what to do: give an array of shape (C,)",
    ),
    "weight type": (
        lambda: WeightQuant(np.ones((2, 2), np.int32), np.ones(2)),
        "a quantised weight has dtype int32 and shape (2, 2)\n"
        "  why: kernels take an int8 matrix of (rows, columns), or an int16 table of rows\n"
        "  what to do: quantise and reshape it first",
    ),
    "weight rows": (
        lambda: WeightQuant(np.ones((2, 2), np.int8), np.ones(3)),
        "a quantised weight has 2 rows and 3 row scales\n"
        "  why: every row has its own scale\n"
        "  what to do: repeat a scale that several rows share",
    ),
    "preset": (
        lambda: QuantizationTable("best"),
        "unknown preset 'best'\n"
        "  why: a preset chooses the form of every approximation\n"
        "  what to do: use one of: accurate, paper, released",
    ),
    "wide operand": (
        lambda: QuantizationTable("paper", {"a": ActivationQuant(1.0, -127, 128)}),
        "a matrix operand uses integers -127..128\n"
        "  where: matmul entry 'a'\n"
        "  why: a matrix operand has 8 bits, or more with even bounds, one zero point of 0 and "
        "whole channels\n"
        "  what to do: stay within -128..127, 0..255 or -16256..16256",
    ),
    "stream": (
        lambda: QuantizationTable("paper", {}, {"a": ActivationQuant(1.0, 0, 255, 1)}),
        "it has a zero point, a channel divisor, split channels or a scale per row\n"
        "  where: stream entry 'a'\n"
        "  why: values that are added are symmetric and share one scale\n"
        "  what to do: give it a plain scale",
    ),
    "wide stream": (
        lambda: QuantizationTable("paper", {}, {"a": ActivationQuant(1.0, -1, 2**20)}),
        "it uses integers -1..1048576\n"
        "  where: stream entry 'a'\n"
        "  why: LayerNorm takes 21 bits\n"
        "  what to do: stay within -1048575..1048575",
    ),
    "grid": (
        lambda: QuantizationTable("paper", grids={"a": ActivationQuant(1.0, 0, 255, 1)}),
        "it has a zero point, a channel divisor, split channels or a scale per row\n"
        "  where: grids entry 'a'\n"
        "  why: values that are added are symmetric and share one scale\n"
        "  what to do: give it a plain scale",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_table_is_refused_with_the_reason(case):
    make, text = BAD[case]
    with pytest.raises(QuantizationTableError) as caught:
        make()
    assert str(caught.value) == text
