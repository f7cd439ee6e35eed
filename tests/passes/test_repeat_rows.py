"""Channels that are gathered behind a linear layer become rows of it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from tvm import relax

from ibert_tvm.relay_passes import integer
from ibert_tvm.relay_passes.integer.evaluate import evaluate
from ibert_tvm.relay_passes.integer.relax_ops import operator_of
from ibert_tvm.relay_passes.passes import IntegerProgram
from ibert_tvm.relay_passes.passes.program import bindings
from ibert_tvm.relay_passes.passes.repeat_rows import RepeatRows
from tests.passes.execution import Compiled
from tests.passes.models import ProgramBuilder
from tests.passes.small import small_program

CHANNELS = np.array([0, 1, 2, 3, 4, 5, 5, 5, 2, 0], np.int32)


def program(*, twice: bool = False, norm: bool = False, by_row: bool = False) -> IntegerProgram:
    """A layer, ReLU and a scale for each channel, of which channels are gathered."""
    random = np.random.default_rng(0)
    arrays = {
        "table": random.integers(-99, 99, (20, 8)).astype(np.int8),
        "one": np.ones(1, np.int32),
        "weight": random.integers(-99, 99, (6, 8)).astype(np.int8),
        "bias": random.integers(-999, 999, 6).astype(np.int32),
        "scales": np.arange(1, 7).astype(np.int32),
        "channels": CHANNELS,
    }
    limits = {"low": -127, "high": 127, "dtype": "int8"}

    def body(p: ProgramBuilder, inputs: Mapping[str, relax.Var]) -> list[relax.Var]:
        params = {name: p.parameter(name, array) for name, array in arrays.items()}
        emit, one = p.emit, params["one"]
        x = emit(integer.embedding(inputs["input_ids"], params["table"], one, name="words"))
        x = emit(integer.requantise(x, one, name="bytes", shift=0, **limits))
        y = emit(integer.linear(x, params["weight"], params["bias"], name="up"))
        if by_row:
            m = emit(integer.row_magnitude(x, name="magnitude"))
            y = emit(integer.scale_rows(y, m, params["bias"], name="rows", shift=2))
        y = emit(integer.relu(y, name="relu"))
        y = emit(integer.requantise(y, params["scales"], name="scaled", shift=9, **limits))
        source = x if norm else y
        found = emit(integer.gather_channels(source, params["channels"], name="columns"))
        return [found, y] if twice else [found]

    return small_program(body)


def operators(result: IntegerProgram) -> list[str]:
    return [
        operator_of(binding.value).OP.removeprefix("integer.")
        for binding in bindings(result.module["main"])
        if isinstance(binding.value, relax.Call)
    ]


INPUTS = {
    "input_ids": np.random.default_rng(1).integers(0, 20, (2, 5)).astype(np.int32),
    "attention_mask": np.ones((2, 5), np.int32),
}


def outputs(result: IntegerProgram) -> list[np.ndarray]:
    return evaluate(result.module, INPUTS, result.parameters)


def test_rows_and_constants_are_gathered() -> None:
    before = program()
    after = RepeatRows()(before)
    assert operators(after) == ["embedding", "requantise", "linear", "relu", "requantise"]
    np.testing.assert_array_equal(outputs(after)[0], outputs(before)[0])
    shapes = {name: array.shape for name, array in after.parameters.items()}
    assert shapes["weight.rows"] == (10, 8)
    assert shapes["bias.rows"] == shapes["scales.rows"] == (10,)
    assert not shapes.keys() & {"weight", "bias", "scales", "channels"}


def test_numbers_of_rows_stay() -> None:
    before = program(by_row=True)
    after = RepeatRows()(before)
    rows = ["row_magnitude", "scale_rows"]
    expected = ["embedding", "requantise", "linear", *rows, "relu", "requantise"]
    assert operators(after) == expected
    np.testing.assert_array_equal(outputs(after)[0], outputs(before)[0])
    assert np.unique(outputs(after)[0]).size > 4


@pytest.mark.parametrize("case", [{"twice": True}, {"norm": True}], ids=["another reader", "table"])
def test_elsewhere_channels_are_gathered_by_a_kernel(case: dict[str, bool]) -> None:
    before = program(**case)
    after = RepeatRows()(before)
    assert after is before
    assert "gather_channels" in operators(after)
    answer = Compiled(before, "x86-64", [(2, 5)])(*INPUTS.values())
    for got, want in zip(answer, outputs(before), strict=True):
        np.testing.assert_array_equal(got, want)
