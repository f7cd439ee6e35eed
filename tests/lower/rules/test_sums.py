"""Lowering of products of two values, and of factors and rows by channel."""

from __future__ import annotations

import numpy as np
import pytest

from ibert_tvm.relay_passes.canonical import build
from ibert_tvm.relay_passes.errors import RangeError
from ibert_tvm.relay_passes.quantization_table import ActivationQuant, WeightQuant
from ibert_tvm.relay_passes.spec.clipped import clipped_scale
from ibert_tvm.relay_passes.spec.logistic import SIGMOID
from tests.lower.lowering import (
    LINEAR,
    LINEAR_TABLE,
    STREAM,
    SUM,
    kinds,
    linear,
    lower,
    native_scale,
    needed,
    records,
)

NUMBERS = {"factor": np.array([2.0, -0.5], np.float32), "row": np.array([1.0, -2.0], np.float32)}


def gate(emit, x, w):
    up = linear(emit, x, w)
    return emit(build.multiply(emit(build.sigmoid(up, name="gate")), up, name="y"))


def test_a_product_is_exact_until_it_is_requantised() -> None:
    own = ActivationQuant(clipped_scale(SIGMOID.limit, 4.0), -(2**14 - 1), 2**14 - 1)
    divided = ActivationQuant(2.0**-4, -127, 127, 0, np.array([1.0, 2.0, 0.5]))
    down = {"down.weight": np.zeros((3, 3), np.float32), "down.bias": np.zeros(3, np.float32)}
    matrix = WeightQuant(np.eye(3, dtype=np.int8), np.ones(3))
    lowered = lower(
        lambda emit, x, mask, w: emit(
            build.linear(gate(emit, x, w), w["down.weight"], w["down.bias"], name="down")
        ),
        {**LINEAR, **down},
        matmul={**LINEAR_TABLE["matmul"], "y": divided},
        matrices={**LINEAR_TABLE["matrices"], "down": matrix},
        stream={"up": own, "gate": STREAM, "down": STREAM},
    )
    assert kinds(lowered, "up.stream")[:4] == [
        ("Sigmoid", "gate"),
        ("Multiply", "y"),
        ("RequantiseShort", "y.matmul"),
        ("Linear", "down"),
    ]
    # The divisor of smoothing is in the factors of the product's only requantisation.
    factors = lowered.parameters["y.matmul.multiplier"] / 2.0 ** (
        15 + 7 + lowered.parameters["y.matmul.pre_shift"]
    )
    expected = own.scale / 2**15 / 2.0**-4 / np.array([1.0, 2.0, 0.5])
    np.testing.assert_allclose(factors, expected, rtol=2**-14)


@pytest.mark.parametrize("reader", ["output", "relu", "select_token"])
def test_whoever_reads_a_product_reads_it_requantised(reader: str) -> None:
    def body(emit, x, mask, w):
        y = gate(emit, x, w)
        return y if reader == "output" else emit(getattr(build, reader)(y, name="z"))

    stream = dict.fromkeys(("up", "gate", "y", "z"), STREAM)
    lowered = lower(body, LINEAR, **LINEAR_TABLE, stream=stream)
    after = [] if reader == "output" else ["z"]
    assert [name for _, name in kinds(lowered, "y")] == ["y.stream", *after]


def test_a_factor_of_more_than_16_bits_is_requantised() -> None:
    lowered = lower(
        lambda emit, x, mask, w: emit(
            build.multiply(x, emit(build.add(x, x, name="sum")), name="y")
        ),
        stream={"sum": SUM, "y": STREAM},
    )
    assert {"y", "x.for.y", "sum.for.y"} <= set(records(lowered))


@pytest.mark.parametrize("preset", ["accurate", "paper"])
def test_factors_by_channel_are_scales_of_the_same_integers(preset: str) -> None:
    lowered = lower(
        lambda emit, x, mask, w: emit(build.scale_channels(x, w["factor"], name="y")),
        NUMBERS,
        preset=preset,
        stream={"y": STREAM},
    )
    assert [name for _, name in kinds(lowered)] == ["x.stream", "y.stream"]
    assert lowered.scales["values"]["y"][0]["value"] == "x.stream"
    np.testing.assert_array_equal(native_scale(lowered, "y"), SUM.scale * NUMBERS["factor"])


def test_what_cannot_be_read_as_it_is_needs_a_stream() -> None:
    def body(emit, x, mask, w):
        y = emit(build.scale_channels(x, w["factor"], name="y"))
        return emit(build.select_token(y, name="first"))

    asked = {name: value.stream for name, value in needed(body, NUMBERS).items()}
    assert asked == {"x": True, "y": True, "first": True}


def test_a_row_is_rounded_to_the_scale_of_the_sum() -> None:
    lowered = lower(
        lambda emit, x, mask, w: emit(build.add_row(x, w["row"], name="y")),
        NUMBERS,
        stream={"y": SUM},
    )
    assert [*records(lowered)] == ["x.for.y", "y"]
    np.testing.assert_array_equal(lowered.parameters["row"], NUMBERS["row"] / SUM.scale)


def test_factors_and_a_row_are_one_requantisation_and_one_sum() -> None:
    def body(emit, x, mask, w):
        y = emit(build.scale_channels(x, w["factor"], name="y"))
        return emit(build.add_row(y, w["row"], name="z"))

    lowered = lower(body, NUMBERS, stream={"z": SUM})
    assert [name for _, name in kinds(lowered)] == ["x.stream", "y.for.z", "z"]


def test_a_row_that_does_not_fit_is_refused(messages) -> None:
    far = {"row": np.array([0.0, 2.0**20], np.float32)}
    with messages.raises(RangeError):
        lower(
            lambda emit, x, mask, w: emit(build.add_row(x, w["row"], name="y")),
            far,
            stream={"y": SUM},
        )
