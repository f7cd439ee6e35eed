"""Interval analysis: sound over evaluations, tight for linear layers, refusals name the layer."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ibert_tvm.relay_passes import integer
from ibert_tvm.relay_passes.errors import RangeError
from ibert_tvm.relay_passes.integer.evaluate import evaluate_all
from ibert_tvm.relay_passes.integer.intervals import accumulator_bounds
from ibert_tvm.relay_passes.integer.ranges import analyse_ranges
from ibert_tvm.relay_passes.spec.short_softmax import ShortExponential


@pytest.mark.parametrize("seed", range(6))
def test_every_value_lies_in_its_interval(encoder, seed: int) -> None:
    module, parameters = encoder
    report = analyse_ranges(module, parameters)
    random = np.random.default_rng(seed)
    length = int(random.integers(1, report.max_seq_len + 1))
    given = {
        "input_ids": random.integers(0, 30, (3, length)),
        "attention_mask": random.integers(0, 2, (3, length)),
    }
    _, captured = evaluate_all(module, given, parameters)
    assert list(captured) == list(report.details)
    for name, value in captured.items():
        low, high = report.values[name]
        assert low <= value.min() and value.max() <= high, name
        assert str(value.dtype) == report.details[name].dtype


def test_extreme_parameters_stay_in_their_intervals(encoder) -> None:
    module, parameters = encoder
    extreme = {
        name: np.where(array >= 0, array.max(), array.min()).astype(array.dtype)
        for name, array in parameters.items()
        if "gelu" not in name
    }
    arrays = {**parameters, **extreme}
    report = analyse_ranges(module, arrays)
    given = {"input_ids": np.full((1, 20), 29), "attention_mask": np.ones((1, 20), np.int64)}
    _, captured = evaluate_all(module, given, arrays)
    for name, value in captured.items():
        low, high = report.values[name]
        assert low <= value.min() and value.max() <= high, name


@given(st.integers(1, 12), st.integers(-128, 255), st.integers(0, 200), st.integers(0, 2**32))
def test_accumulator_bounds_are_exact(depth: int, low: int, span: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    weight = random.integers(-128, 128, (3, depth)).astype(np.int8)
    high = low + span
    got = accumulator_bounds(weight, low, high)
    w = weight.astype(np.int64)
    np.testing.assert_array_equal(got[0], (w * np.where(w > 0, low, high)).sum(1))
    np.testing.assert_array_equal(got[1], (w * np.where(w > 0, high, low)).sum(1))
    y = random.integers(low, high + 1, (20, depth)) @ w.T
    assert (got[0] <= y).all() and (y <= got[1]).all()


def test_stages_of_reductions_are_reported(encoder) -> None:
    report = analyse_ranges(*encoder)
    attended, norm = report.details["attention"], report.details["embedding_norm"]
    assert attended.stages["score"] == (-8 * 127 * 127, 8 * 127 * 127)
    assert attended.stages["row_sum"][1] == attended.stages["exponential"][1] * report.max_seq_len
    assert {"sum", "mean", "square_sum", "inverse"} <= set(norm.stages)
    if attended.stages.keys() >= {"row_bits"}:
        short = report.details["output_norm"].stages
        assert {"sum", "mean", "square_sum", "square_root"} <= set(short)
        assert short["mean"] == (-16383, 16383) and short["inverse"] == (2**14, 2**15 - 1)
        assert attended.stages["row_bits"] == (8, 15) and 255 * report.max_seq_len < 2**15
        assert attended.stages["context"] == (-255 * 127 * 66, 255 * 127 * 66)
    assert norm.width <= 64


def test_longest_sequence_comes_from_the_positions(encoder) -> None:
    module, parameters = encoder
    kinds = [step for step in ("absolute", "roberta") if f'"{step}"' in module.script()]
    assert (
        analyse_ranges(module, parameters).max_seq_len == {"absolute": 66, "roberta": 64}[kinds[0]]
    )


def test_more_tokens_than_positions_are_refused(encoder) -> None:
    module, parameters = encoder
    with pytest.raises(RangeError) as caught:
        analyse_ranges(module, parameters, max_seq_len=67)
    text = str(caught.value)
    assert text.startswith("positions up to ")
    assert text.endswith(
        "  where: integer.embedding 'position'\n"
        "  why: the table has 66 rows; sequences of 67 tokens are asked for\n"
        "  what to do: use a shorter maximal sequence length"
    )


def wide_linear(b, bias: int):
    table = b.values("table", 127, (30, 64), "int8")
    one = b.parameter("one", [1], "int32")
    x = b.emit(integer.embedding(b.ids, table, one, name="x", shift=0))
    x8 = b.emit(integer.requantise(x, one, name="x8", shift=0, low=-127, high=127, dtype="int8"))
    weight = b.parameter("weight", np.full((2, 64), 127), "int8")
    offset = b.parameter("bias", [0, bias], "int32")
    return b.emit(integer.linear(x8, weight, offset, name="encoder.layer.3.output"))


def test_an_accumulator_that_may_overflow_names_its_layer(builder, messages) -> None:
    room = 2**31 - 1 - 64 * 127 * 127
    module = builder.module(lambda b: wide_linear(b, room + 1))
    with messages.raises(RangeError):
        analyse_ranges(module, builder.parameters)
    builder.parameters["bias"][1] = room
    report = analyse_ranges(module, builder.parameters)
    assert report.values["encoder.layer.3.output"][1] == 2**31 - 1


def test_a_sum_that_does_not_fit_its_storage_names_its_layer(builder, messages) -> None:
    def body(b):
        table = b.values("table", 127, (30, 4), "int8")
        m = b.parameter("m", [2**24], "int32")
        x = b.emit(integer.embedding(b.ids, table, m, name="x", shift=0))
        return b.emit(integer.add(x, x, name="residual"))

    module = builder.module(body)
    with messages.raises(RangeError):
        analyse_ranges(module, builder.parameters)


def test_a_product_past_int64_names_its_layer(builder) -> None:
    def body(b):
        table = b.values("table", 127, (30, 4), "int8")
        one = b.parameter("one", [2**20], "int32")
        x = b.emit(integer.embedding(b.ids, table, one, name="x", shift=0))
        from ibert_tvm.relay_passes.spec.gelu import PaperGelu

        k = PaperGelu.from_scales(np.array([1e-6]))
        arrays = [
            b.parameter("q_b", k.q_b, "int32"),
            b.parameter("q_c", k.q_c, "int64"),
            b.parameter("q_1", k.q_1, "int32"),
            b.parameter("erf_shift", k.erf_shift, "int32"),
        ]
        y = b.emit(integer.gelu_paper(x, *arrays, name="gelu"))
        m = b.parameter("m", [2**30], "int32")
        return b.emit(
            integer.requantise(y, m, name="layer.7.gelu", shift=50, low=-9, high=9, dtype="int8")
        )

    module = builder.module(body)
    with pytest.raises(RangeError) as caught:
        analyse_ranges(module, builder.parameters)
    lines = str(caught.value).splitlines()
    assert lines[0].startswith("product of ") and lines[0].endswith("bits does not fit 64")
    assert lines[1] == "  where: integer.requantise 'layer.7.gelu'"


def test_a_sequence_too_long_for_the_context_names_its_layer(builder, messages) -> None:
    def body(b):
        table = b.values("table", 127, (30, 8), "int8")
        one = b.parameter("one", [1], "int32")
        x = b.emit(integer.embedding(b.ids, table, one, name="x", shift=0))
        x8 = b.emit(
            integer.requantise(x, one, name="x8", shift=0, low=-127, high=127, dtype="int8")
        )
        return b.emit(
            integer.attention(
                x8,
                x8,
                x8,
                b.mask,
                b.parameter("half", [2**14], "int16"),
                name="layer.0.attention",
                num_heads=1,
                softmax="short",
                exponential=ShortExponential.from_scale(1e-3),
                shift=8,
                low=-127,
                high=127,
            )
        )

    module = builder.module(body)
    assert analyse_ranges(module, builder.parameters).max_seq_len == 512
    with messages.raises(RangeError):
        analyse_ranges(module, builder.parameters, max_seq_len=70_000)
