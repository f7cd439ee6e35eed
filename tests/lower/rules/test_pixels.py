"""Lowering of image models: 8-bit pixels, learned rows at the scale of the stream, names."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tvm import tirx

from ibert_tvm.relay_passes.canonical import build
from ibert_tvm.relay_passes.errors import LoweringError, RangeError
from ibert_tvm.relay_passes.integer.evaluate import evaluate
from ibert_tvm.relay_passes.integer.relax_ops import read_program
from ibert_tvm.relay_passes.lower import lower_to_integer
from ibert_tvm.relay_passes.quantization_table import ActivationQuant
from tests.canonical.reference import run
from tests.lower.modules import SUM_HIGH, function, table_for, tensor

PLANES, SIDE, PATCH, HIDDEN = 2, 6, 3, 8


def image_module() -> tuple[Any, dict[str, np.ndarray]]:
    """Patches, a linear layer, one token and positions whose weights are named as their values."""
    random = np.random.default_rng(0)
    shapes = {
        "embed.weight": (HIDDEN, PLANES * PATCH * PATCH),
        "embed.bias": (HIDDEN,),
        "token": (1, HIDDEN),
        "places": (5, HIDDEN),
    }
    weights = {n: random.normal(size=s).astype(np.float32) for n, s in shapes.items()}
    w = {n: tensor(n, s) for n, s in shapes.items()}
    pixels = tensor("pixel_values", [tirx.Var("batch", "int64"), PLANES, SIDE, SIDE])

    def body(emit):
        x = emit(build.patches(pixels, name="patches", patch_height=PATCH, patch_width=PATCH))
        x = emit(build.linear(x, w["embed.weight"], w["embed.bias"], name="embed"))
        x = emit(build.prepend_tokens(x, w["token"], name="token"))
        return emit(build.add_positions(x, w["places"], name="places"))

    return function([pixels], list(w.values()), body), weights


@pytest.fixture(scope="module")
def setting():
    module, weights = image_module()
    random = np.random.default_rng(1)
    inputs = {"pixel_values": random.normal(size=(3, PLANES, SIDE, SIDE))}
    table = table_for(module, weights, inputs)
    # As calibration does: what is only added to something takes the scale of the sum.
    wide = ActivationQuant(table.stream["places"].scale / 4, -SUM_HIGH, SUM_HIGH)
    stream = {**table.stream, "token": wide, "places": wide}
    return module, weights, inputs, replace(table, stream=stream)


def with_pixels(table, quant: ActivationQuant):
    return replace(table, matmul={**table.matmul, "patches": quant})


@pytest.mark.parametrize("zero_point", [None, 117])
def test_the_program_takes_integer_pixels_and_is_close(setting, zero_point):
    module, weights, inputs, table = setting
    if zero_point is not None:  # unsigned pixels, as other tools have them
        scale = table.matmul["patches"].scale
        table = with_pixels(table, ActivationQuant(scale, 0, 255, zero_point))
    lowered = lower_to_integer(module, weights, table)
    (record,) = lowered.scales["inputs"]
    quant = table.matmul["patches"]
    dtype = "int8" if zero_point is None else "uint8"
    assert record == {
        "name": "pixel_values",
        "scale": quant.scale,
        "zero_point": zero_point or 0,
        "low": quant.low,
        "high": quant.high,
        "dtype": dtype,
    }
    program = read_program(lowered.module)
    assert [kind.dtype for kind in program.inputs.values()] == [dtype]
    assert [step.operator.OP.removeprefix("integer.") for step in program.steps] == [
        "patches",
        "linear",
        "requantise",
        "prepend_tokens",
        "add_positions",
    ]
    pixels = {"pixel_values": quant.quantize(inputs["pixel_values"])}
    (integers,) = evaluate(lowered.module, pixels, lowered.parameters)
    want = run(module, {**inputs, **weights})["places"]
    have = integers * lowered.scales["outputs"][0]["scale"]
    np.testing.assert_allclose(have, want, atol=0.03 * np.abs(want).max())


def test_a_weight_that_is_named_as_a_value_gets_another_name(setting):
    """Emission knows bounds by name: the range of a table once stood for that of the sum."""
    module, weights, _, table = setting
    lowered = lower_to_integer(module, weights, table)
    values = {step.name for step in read_program(lowered.module).steps}
    assert {"token", "places"} <= values
    assert not values & set(lowered.parameters)
    assert {"token.2", "places.2"} <= set(lowered.parameters)


def test_pixels_have_one_scale(setting, messages):
    module, weights, _, table = setting
    divisor = np.ones(PLANES * PATCH * PATCH)
    bad = with_pixels(table, replace(table.matmul["patches"], channel_divisor=divisor))
    with messages.raises(LoweringError):
        lower_to_integer(module, weights, bad)


def test_learned_rows_must_fit_the_stream(setting, messages):
    module, weights, _, table = setting
    far = {**weights, "token": np.full((1, HIDDEN), 1e4, np.float32)}
    with messages.raises(RangeError):
        lower_to_integer(module, far, table)
