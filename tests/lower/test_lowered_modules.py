"""What holds for any module: forms, grids, parameters; the golden digests have whole models."""

from __future__ import annotations

import numpy as np
import pytest
import tvm

from ibert_tvm.relay_passes.canonical import build
from ibert_tvm.relay_passes.quantization_table import ActivationQuant, WeightQuant
from ibert_tvm.relay_passes.spec.clipped import clipped_scale
from ibert_tvm.relay_passes.spec.gelu import GELU
from tests.lower.lowering import (
    BIAS,
    INT8,
    LINEAR,
    LINEAR_TABLE,
    MATRIX,
    STREAM,
    SUM,
    kinds,
    linear,
    lower,
    lower_linear,
)

GELU_STREAM = ActivationQuant(clipped_scale(GELU.limit, 4.0), -32767, 32767)


def test_a_sum_of_embeddings_takes_each_at_its_scale_directly() -> None:
    lowered = lower(lambda emit, x, mask, w: emit(build.add(x, x, name="sum")), stream={"sum": SUM})
    assert kinds(lowered, "x.for.sum") == [("Add", "sum")]


@pytest.mark.parametrize("zero_point", [0, 9])
def test_linear_folds_bias_and_zero_point(zero_point: int) -> None:
    quant = INT8 if zero_point == 0 else ActivationQuant(2.0**-4, 0, 255, zero_point)
    lowered = lower(
        lambda emit, x, mask, w: emit(build.relu(linear(emit, x, w), name="y")),
        LINEAR,
        matmul={"x": quant},
        matrices={"up": MATRIX},
        stream={"y": STREAM},
    )
    assert kinds(lowered, "x.matmul") == [
        ("Linear", "up"),
        ("Relu", "y"),
        ("Requantise", "y.stream"),
    ]
    name = "up.bias" if zero_point == 0 else "up.bias.compensated"
    steps = np.floor(BIAS * 16 / MATRIX.scale + 0.5)
    sums = MATRIX.values.sum(axis=1, dtype=np.int64)
    np.testing.assert_array_equal(lowered.parameters[name], steps - zero_point * sums)
    assert lowered.scales["values"]["up"] == [
        {"value": "up", "form": "native", "scale": [2**-5, 2**-6, 2**-7], "zero_point": 0}
    ]
    assert lowered.scales["outputs"] == [
        {"name": "y", "value": "y.stream", "scale": 2**-12, "zero_point": 0, "dtype": "int16"}
    ]


def test_smoothing_only_changes_the_multipliers_of_the_8_bit_form() -> None:
    divided = ActivationQuant(2.0**-4, -127, 127, 0, np.array([4.0, 0.5]))
    plain, lowered = (
        lower(linear_only, LINEAR, matmul={"x": quant}, matrices={"up": MATRIX}, stream=UP)
        for quant in (INT8, divided)
    )
    changed = [
        name
        for name in plain.parameters
        if not np.array_equal(plain.parameters[name], lowered.parameters[name])
    ]
    assert changed == ["x.matmul.multiplier", "x.matmul.pre_shift"]
    # 2^-10 / 4 and 2^-10 / 0.5 are a factor of 8 apart.
    assert lowered.parameters["x.matmul.multiplier"].tolist() == [2**14, 2**14]
    assert lowered.parameters["x.matmul.pre_shift"].tolist() == [4, 1]


def linear_only(emit, x, mask, w):
    return linear(emit, x, w)


UP = {"up": STREAM}


def test_a_grid_rounds_a_value_before_anything_reads_it() -> None:
    lowered = lower_linear(
        lambda up: build.gelu(up, name="y", form="tanh"),
        stream={"up": GELU_STREAM, "y": STREAM},
        grids={"up": ActivationQuant(2.0**-5, -118, 137)},
    )
    assert [name for _, name in kinds(lowered, "up")] == ["up.grid", "up.stream", "y"]
    assert [form["form"] for form in lowered.scales["values"]["up"]] == ["native", "grid", "stream"]


def test_a_grid_that_the_value_is_on_already_costs_nothing() -> None:
    same = ActivationQuant(2.0**-12, -32767, 32767)
    plain, gridded = (
        lower(
            lambda emit, x, mask, w: emit(
                build.layer_norm(x, w["norm.weight"], w["norm.bias"], name="n", epsilon=1e-5)
            ),
            {"norm.weight": np.ones(2, np.float32), "norm.bias": np.zeros(2, np.float32)},
            stream={"n": STREAM},
            grids=grids,
        )
        for grids in ({}, {"n": same})
    )
    tvm.ir.assert_structural_equal(plain.module, gridded.module)


def test_a_form_that_several_read_is_made_once() -> None:
    def source(emit, x, mask, w):
        y = linear(emit, x, w)
        return emit(build.gelu(y, name="first")), emit(build.gelu(y, name="second"))

    stream = dict.fromkeys(("up", "first", "second"), GELU_STREAM)
    lowered = lower(source, LINEAR, **LINEAR_TABLE, stream=stream)
    names = [name for _, name in kinds(lowered)]
    assert names == ["x.matmul", "up", "up.stream", "first", "second"]


def test_values_that_no_output_depends_on_are_left_out() -> None:
    def source(emit, x, mask, w):
        linear(emit, x, w)
        return emit(build.relu(x, name="y"))

    lowered = lower(source, LINEAR)
    assert list(lowered.parameters) == ["words.weight", "x.multiplier"]
    assert list(lowered.scales["values"]) == ["x", "y"]


def test_a_matrix_with_two_quantisations_becomes_two_parameters() -> None:
    other = WeightQuant(np.full((3, 2), 7, np.int8), np.array([0.5, 0.25, 0.125]))

    def source(emit, x, mask, w):
        first = linear(emit, x, w)
        second = emit(build.linear(x, w["up.weight"], w["up.bias"], name="again"))
        return emit(build.add(first, second, name="sum"))

    lowered = lower(
        source,
        LINEAR,
        matmul={"x": INT8},
        matrices={"up": MATRIX, "again": other},
        stream={"sum": SUM},
    )
    np.testing.assert_array_equal(lowered.parameters["up.weight"], MATRIX.values)
    np.testing.assert_array_equal(lowered.parameters["up.weight.2"], other.values)
    assert "up.bias.2" not in lowered.parameters  # equal integers are shared


def test_lowering_is_deterministic_and_changes_nothing_it_is_given() -> None:
    first, second = (lower(linear_only, LINEAR, **LINEAR_TABLE, stream=UP) for _ in range(2))
    tvm.ir.assert_structural_equal(first.module, second.module, map_free_vars=True)
    assert first.scales == second.scales
