"""Before and Expected: embeddings, matrix products, and what holds for any module."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax

from ibert_tvm.relay_passes import integer
from ibert_tvm.relay_passes.canonical import build
from ibert_tvm.relay_passes.quantization_table import ActivationQuant, WeightQuant
from ibert_tvm.relay_passes.spec.clipped import ClippedPolynomial
from ibert_tvm.relay_passes.spec.gelu import GELU
from tests.lower.expected import (
    GELU_STREAM,
    INT8,
    LINEAR,
    LINEAR_TABLE,
    MATRIX,
    STREAM,
    SUM,
    WORDS,
    Expected,
    check,
    expected_linear,
    linear,
    lower,
    multiplier,
)


def test_embedding_is_requantised_by_row():
    lowered = lower(lambda emit, x, mask, w: emit(build.relu(x, name="y")))
    expected = Expected()

    def body(emit):
        return emit(integer.relu(expected.embedded(emit), name="y"))

    check(lowered, expected, body)


def test_a_sum_of_embeddings_takes_each_at_its_scale_directly():
    lowered = lower(lambda emit, x, mask, w: emit(build.add(x, x, name="sum")), stream={"sum": SUM})
    expected = Expected()

    def body(emit):
        factors, shift = multiplier([2.0**13, 2.0**12, 2.0**14], 22)
        words = expected.constant("words.weight", WORDS.values)
        m = expected.constant("x.for.sum.multiplier", factors)
        term = emit(integer.embedding(expected.ids, words, m, name="x.for.sum", shift=shift))
        return emit(integer.add(term, term, name="sum"))

    check(lowered, expected, body)


@pytest.mark.parametrize("zero_point", [0, 9])
def test_linear_folds_bias_and_zero_point(zero_point):
    quant = INT8 if zero_point == 0 else ActivationQuant(2.0**-4, 0, 255, zero_point)
    lowered = lower(
        lambda emit, x, mask, w: emit(build.relu(linear(emit, x, w), name="y")),
        LINEAR,
        matmul={"x": quant},
        matrices={"up": MATRIX},
        stream={"y": STREAM},
    )
    expected = Expected()

    def body(emit):
        acc = expected_linear(expected, emit, zero_point)
        y = emit(integer.relu(acc, name="y"))
        factors, shift = multiplier([2.0**7, 2.0**6, 2.0**5], 31)
        return emit(
            integer.requantise(
                y,
                expected.constant("y.stream.multiplier", factors),
                name="y.stream",
                shift=shift,
                low=-32767,
                high=32767,
                dtype="int16",
            )
        )

    check(lowered, expected, body)
    assert lowered.scales["values"]["up"] == [
        {"value": "up", "form": "native", "scale": [2**-5, 2**-6, 2**-7], "zero_point": 0}
    ]
    assert lowered.scales["outputs"] == [
        {"name": "y", "value": "y.stream", "scale": 2**-12, "zero_point": 0, "dtype": "int16"}
    ]


def test_smoothing_only_changes_the_multipliers_of_the_8_bit_form():
    divided = ActivationQuant(2.0**-4, -127, 127, 0, np.array([4.0, 0.5]))
    lowered = lower(
        lambda emit, x, mask, w: linear(emit, x, w),
        LINEAR,
        matmul={"x": divided},
        matrices={"up": MATRIX},
        stream={"up": STREAM},
    )
    plain = lower(
        lambda emit, x, mask, w: linear(emit, x, w), LINEAR, **LINEAR_TABLE, stream={"up": STREAM}
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


def test_a_grid_rounds_a_value_before_anything_reads_it():
    lowered = lower(
        lambda emit, x, mask, w: emit(build.gelu(linear(emit, x, w), name="y", form="tanh")),
        LINEAR,
        **LINEAR_TABLE,
        stream={"up": GELU_STREAM, "y": STREAM},
        grids={"up": ActivationQuant(2.0**-5, -118, 137)},
    )
    expected = Expected()

    def body(emit):
        factors, shift = multiplier([1.0, 0.5, 0.25], 31)
        grid = emit(
            integer.requantise(
                expected_linear(expected, emit),
                expected.constant("up.grid.multiplier", factors),
                name="up.grid",
                shift=shift,
                low=-118,
                high=137,
                dtype="int16",
            )
        )
        factor, shift = multiplier([2.0**-5 / GELU_STREAM.scale], 22)
        stream = emit(
            integer.requantise(
                grid,
                expected.constant("up.stream.multiplier", factor),
                name="up.stream",
                shift=shift,
                low=-32767,
                high=32767,
                dtype="int16",
            )
        )
        return emit(
            integer.gelu(stream, ClippedPolynomial.from_scale(GELU_STREAM.scale, GELU), name="y")
        )

    check(lowered, expected, body)
    assert [form["form"] for form in lowered.scales["values"]["up"]] == ["native", "grid", "stream"]


def test_a_grid_that_the_value_is_on_already_costs_nothing():
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


def test_a_form_that_several_read_is_made_once():
    def source(emit, x, mask, w):
        y = linear(emit, x, w)
        first = emit(build.gelu(y, name="first"))
        second = emit(build.gelu(y, name="second"))
        return first, second

    lowered = lower(
        source, LINEAR, **LINEAR_TABLE, stream={n: GELU_STREAM for n in ("up", "first", "second")}
    )
    names = [
        str(b.value.attrs["name"])
        for b in lowered.module["main"].body.blocks[0].bindings
        if isinstance(b.value, relax.Call)
    ]
    assert names == ["x", "x.matmul", "up", "up.stream", "first", "second"]


def test_values_that_no_output_depends_on_are_left_out():
    def source(emit, x, mask, w):
        linear(emit, x, w)
        return emit(build.relu(x, name="y"))

    lowered = lower(source, LINEAR)
    assert list(lowered.parameters) == ["words.weight", "x.multiplier"]
    assert list(lowered.scales["values"]) == ["x", "y"]


def test_a_matrix_with_two_quantisations_becomes_two_parameters():
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


def test_lowering_is_deterministic_and_changes_nothing_it_is_given():
    def source(emit, x, mask, w):
        return linear(emit, x, w)

    first = lower(source, LINEAR, **LINEAR_TABLE, stream={"up": STREAM})
    second = lower(source, LINEAR, **LINEAR_TABLE, stream={"up": STREAM})
    tvm.ir.assert_structural_equal(first.module, second.module, map_free_vars=True)
    assert first.scales == second.scales
