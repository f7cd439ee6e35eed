"""Random programs of all operators: intervals that hold, and the reference's bits on every target.

What a random program has found stands at the end, as a test of its own.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from ibert_tvm.relay_passes import integer
from ibert_tvm.relay_passes.dialect.calls import call_operator
from ibert_tvm.relay_passes.errors import LoweringError, RangeError
from ibert_tvm.relay_passes.integer.evaluate import evaluate
from ibert_tvm.relay_passes.integer.operators.attention import Attention
from ibert_tvm.relay_passes.integer.ranges import analyse_ranges
from ibert_tvm.relay_passes.integer.relax_ops import read_program
from ibert_tvm.relay_passes.integer.unbounded import check_unbounded
from ibert_tvm.relay_passes.spec.logarithm import Logarithm
from ibert_tvm.relay_passes.spec.short_layer_norm import ShortLayerNorm
from ibert_tvm.relay_passes.spec.short_softmax import ShortExponential
from tests.arm.tools import board
from tests.examples import examples
from tests.integer.conftest import Builder
from tests.snapshots import Messages

from .comparison import (
    SHAPES,
    TARGETS,
    check,
    check_corners,
    check_intervals,
    compare,
    inputs_of,
    runs,
)
from .generator import VOCABULARY, random_program

CHAINS = 8


@pytest.fixture
def builder() -> Builder:
    return Builder()


def test_programs_are_drawn_again_from_their_seed() -> None:
    (one, arrays), (other, same) = random_program(3, 2), random_program(3, 2)
    assert one == other
    assert set(arrays) == set(same)
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, same[name])


def test_nothing_leaves_its_interval() -> None:
    met: Counter[str] = Counter()
    for seed in range(3):
        program, parameters = random_program(seed, 2)
        met.update(step.operator.OP for step in program.steps)
        given = inputs_of(SHAPES[seed % len(SHAPES)], np.random.default_rng(seed))
        assert check_intervals(program, parameters, given) == []
        assert check_corners(program, parameters, seed) == []
    assert len(met) > 6


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed", examples(range(10_000, 10_025), *range(10_000, 10_012), otherwise="record")
)
def test_programs_give_the_bits_of_the_reference(seed: int) -> None:
    """On processors that this machine has; `python -m tests.programs` emulates others."""
    here = [name for name, (_, emulated) in TARGETS.items() if not emulated and runs(name)]
    assert check(seed, CHAINS, here[seed % len(here)]) == []


def test_a_wrong_output_is_reduced(monkeypatch: pytest.MonkeyPatch) -> None:
    from . import comparison

    program, _ = random_program(5, 3)
    wrong = program.outputs[-1]
    monkeypatch.setattr(
        comparison, "compare", lambda one, *_: wrong if wrong in one.outputs else ""
    )
    (failure,) = check(5, 3, "host")
    assert (failure.output, failure.why) == (wrong, "integers differ")
    assert 0 < len(failure.steps) < len(program.steps)


# -- what was found ------------------------------------------------------------------------------


def test_sequences_without_a_mask_may_be_shorter_than_the_longest(builder: Builder) -> None:
    """The interval of their number of tokens was that of the longest alone."""

    def body(b: Builder) -> object:
        table = b.values("table", 127, (30, 4), "int8")
        one = b.parameter("one", [1], "int32")
        x = b.emit(integer.embedding(b.ids, table, one, name="x", shift=0))
        return b.emit(integer.mean_pool(x, None, name="mean", fraction_bits=3))

    program = read_program(builder.module(body))
    report = analyse_ranges(program, builder.parameters)
    given = {"input_ids": np.ones((1, 3), np.int64), "attention_mask": np.ones((1, 3), np.int64)}
    assert check_unbounded(program, given, builder.parameters, report.details) == []


def test_a_program_without_an_arena_runs(builder: Builder) -> None:
    """NumPy's arrays of no bytes start anywhere, which the C interface refused."""

    def body(b: Builder) -> object:
        table = b.values("table", 127, (VOCABULARY, 12), "int8")
        one = b.parameter("one", [1], "int32")
        return b.emit(integer.embedding(b.ids, table, one, name="x", shift=0))

    program = read_program(builder.module(body))
    assert compare(program, builder.parameters, "x86-64", (1, 4), 0) == ""


@pytest.mark.slow
@pytest.mark.representatives(1)
@pytest.mark.parametrize("value", [0, 7])
def test_rows_of_one_number_are_normalised(builder: Builder, value: int) -> None:
    """Their variance is epsilon alone, and the analysis knows the value: no kernel was found."""

    def body(b: Builder) -> object:
        table = b.parameter("table", np.full((VOCABULARY, 8), value), "int8")
        one = b.parameter("one", [1], "int32")
        x = b.emit(integer.embedding(b.ids, table, one, name="x", shift=0))
        return b.emit(
            integer.layer_norm_short(
                x,
                b.values("gain", 2**13, (8,), "int32"),
                b.values("offset", 2**24, (8,), "int32"),
                ShortLayerNorm.from_scale(1e-3, 1e-12, 8),
                name="norm",
                shift=13,
                low=-32767,
                high=32767,
                dtype="int16",
            )
        )

    program = read_program(builder.module(body))
    given = inputs_of((2, 3), np.random.default_rng(0))
    assert check_intervals(program, builder.parameters, given) == []
    (result,) = evaluate(program, given, builder.parameters)
    # What is left of a row about its mean is 0, so that the offset alone is.
    assert (result == result[0, 0]).all()
    assert compare(program, builder.parameters, "x86-64", (2, 3), 0) == ""


@pytest.mark.slow
def test_what_is_computed_of_a_known_number_is_known(builder: Builder) -> None:
    """The number was inlined into bindings traced for a variable, which TVM's analyses refused."""

    def body(b: Builder) -> object:
        table = b.parameter("table", np.full((VOCABULARY, 3), 127), "int8")
        x = b.emit(
            integer.embedding(b.ids, table, b.parameter("m", [2**20], "int32"), name="x", shift=0)
        )
        stored = {"low": -99, "high": 99, "dtype": "int8"}
        one = b.parameter("one", [1], "int32")
        x = b.emit(integer.requantise(x, one, name="always", shift=2, **stored))
        for name in ("once", "twice"):
            x = b.emit(integer.log1p_relu(x, Logarithm(16383, 15, 32768000, 31646), name=name))
        return x

    program = read_program(builder.module(body))
    report = analyse_ranges(program, builder.parameters)
    assert [report.details[name].low for name in ("always", "once", "twice")] == [99, 4463, 80272]
    assert compare(program, builder.parameters, "x86-64", (1, 4), 0) == ""


@pytest.mark.slow
def test_the_sign_of_a_known_number_is_kept(builder: Builder) -> None:
    """Its absolute value was no known number, and of the choice by its sign the first was taken."""

    def body(b: Builder) -> object:
        table = b.parameter("table", np.full((VOCABULARY, 1), -127), "int8")
        one = b.parameter("one", [1], "int32")
        x = b.emit(integer.embedding(b.ids, table, one, name="x", shift=0))
        stored = {"low": -99, "high": 99, "dtype": "int8"}
        x = b.emit(integer.requantise(x, one, name="always", shift=0, **stored))
        constants = {"q_b": -17545, "q_c": -174039853, "q_1": -7934, "erf_shift": 15}
        given = {
            name: b.parameter(name, [value], "int64" if name == "q_c" else "int32")
            for name, value in constants.items()
        }
        return b.emit(integer.gelu_paper(x, *given.values(), name="gelu"))

    program = read_program(builder.module(body))
    given = inputs_of((1, 4), np.random.default_rng(0))
    (result,) = evaluate(program, given, builder.parameters)
    assert (result == 1179288).all()
    assert compare(program, builder.parameters, "x86-64", (1, 4), 0) == ""


@pytest.mark.qemu
def test_one_row_and_one_column_of_a_product_are_no_vector(builder: Builder) -> None:
    """Seed 622: a tile of them has no loop, and the loop over tiles became vectors of tiles."""

    def body(b: Builder) -> object:
        table = b.values("table", 127, (VOCABULARY, 3), "int8")
        x = b.emit(
            integer.embedding(b.ids, table, b.parameter("m", [1], "int32"), name="x", shift=0)
        )
        one = b.parameter("one", [1], "int32")
        x = b.emit(integer.requantise(x, one, name="q", shift=0, low=-99, high=99, dtype="int8"))
        weight, bias = b.values("w", 127, (1, 3), "int8"), b.parameter("bias", [6], "int32")
        return b.emit(integer.linear(x, weight, bias, name="linear"))

    board("armv7-neon")
    program = read_program(builder.module(body))
    assert compare(program, builder.parameters, "armv7-neon", (3, 5), 0) == ""


@pytest.mark.slow
def test_a_product_may_be_its_own_magnitude(builder: Builder) -> None:
    """Seed 714: it was read at channel 0 and at every channel, of which there is one."""

    def body(b: Builder) -> object:
        table = b.values("table", 127, (VOCABULARY, 16), "int8")
        one = b.parameter("one", [1], "int32")
        x = b.emit(integer.embedding(b.ids, table, one, name="x", shift=0))
        x = b.emit(integer.requantise(x, one, name="q", shift=0, low=-99, high=99, dtype="int8"))
        weight, bias = b.values("w", 127, (1, 16), "int8"), b.parameter("bias", [0], "int32")
        x = b.emit(integer.linear(x, weight, bias, name="linear"))
        offset = b.parameter("offset", [191484148], "int32")
        return b.emit(integer.scale_rows(x, x, offset, name="scaled", shift=11))

    program = read_program(builder.module(body))
    assert compare(program, builder.parameters, "x86-64", (2, 24), 0) == ""


@pytest.mark.slow
def test_what_is_always_0_binds_nothing(builder: Builder) -> None:
    """Seed 716: ``x * 0`` was folded to a 0 that bound x, which TVM makes no vectors of."""

    def body(b: Builder) -> object:
        table = b.values("table", 127, (VOCABULARY, 8), "int8")
        x = b.emit(
            integer.embedding(b.ids, table, b.parameter("m", [9], "int32"), name="x", shift=1)
        )
        # Clamped to [q_1, -q_1], whose ends are the wrong way round, i-erf is -19 and q_1 is 19.
        given = {
            "q_b": b.values("q_b", 2000, (8,), "int32"),
            "q_c": b.values("q_c", 2**38, (8,), "int64"),
            "q_1": b.parameter("q_1", [19], "int32"),
            "erf_shift": b.parameter("erf_shift", [1, 2, 2, 2, 2, 3, 1, 2], "int32"),
        }
        x = b.emit(integer.gelu_paper(x, *given.values(), name="gelu"))
        stored = {"low": -99, "high": 99, "dtype": "int8", "zero_point": 5}
        offset = b.values("offset", 2**7, (8,), "int16")
        multiplier = b.parameter("multiplier", [1], "int32")
        x = b.emit(integer.requantise(x, multiplier, offset, name="q", shift=20, **stored))
        return b.emit(integer.leaky_relu(x, name="leaky", slope=3277))

    program = read_program(builder.module(body))
    report = analyse_ranges(program, builder.parameters)
    assert (report.details["gelu"].low, report.details["gelu"].high) == (0, 0)
    assert compare(program, builder.parameters, "x86-64", (2, 7), 0) == ""


@pytest.mark.slow
def test_a_number_that_is_folded_late_is_not_bound(builder: Builder) -> None:
    """Seed 1228: what an i-GELU of 0 was requantised to was bound, folded, and bound again."""

    def body(b: Builder) -> object:
        table = b.values("table", 127, (VOCABULARY, 8), "int8")
        x = b.emit(
            integer.embedding(b.ids, table, b.parameter("m", [9], "int32"), name="x", shift=1)
        )
        for name, one in (("first", 19), ("second", -900)):
            given = {
                "q_b": b.values(f"{name}.q_b", 2000, (8,), "int32"),
                "q_c": b.values(f"{name}.q_c", 2**38, (8,), "int64"),
                "q_1": b.parameter(f"{name}.q_1", [one], "int32"),
                "erf_shift": b.parameter(f"{name}.erf_shift", [12], "int32"),
            }
            x = b.emit(integer.gelu_paper(x, *given.values(), name=name))
            stored = {"low": -99, "high": 99, "dtype": "int8", "zero_point": 61}
            multiplier = b.parameter(f"{name}.multiplier", [1], "int32")
            x = b.emit(integer.requantise(x, multiplier, name=f"{name}.q", shift=7, **stored))
        return x

    program = read_program(builder.module(body))
    assert compare(program, builder.parameters, "x86-64", (2, 7), 0) == ""


def test_a_value_without_an_expression_is_not_compiled(messages: Messages) -> None:
    """Its lower end was taken for it."""
    from ibert_tvm.relay_passes.emit.stage import expression
    from ibert_tvm.relay_passes.spec.ranged import Ranged

    assert int(expression(Ranged(3, 3), "int32")) == 3
    with messages.raises(LoweringError):
        expression(Ranged(-3, 3), "int32")


@pytest.mark.slow
def test_one_token_alone_is_compiled(builder: Builder) -> None:
    """The sum over one token is no sum, for which its width was asked."""

    def body(b: Builder) -> object:
        table = b.values("table", 127, (VOCABULARY, 12), "int8")
        one = b.parameter("one", [1], "int32")
        x = b.emit(integer.embedding(b.ids, table, one, name="x", shift=0))
        return b.emit(integer.mean_pool(x, b.mask, name="mean", fraction_bits=3))

    program = read_program(builder.module(body))
    assert compare(program, builder.parameters, "x86-64", (1, 1), 0) == ""


def test_queries_may_be_their_own_keys(builder: Builder) -> None:
    """The product of a query and a key of one value was taken for a square, never negative."""

    def body(b: Builder) -> object:
        table = b.values("table", 127, (30, 4), "int8")
        one = b.parameter("one", [1], "int32")
        x = b.emit(integer.embedding(b.ids, table, one, name="x", shift=0))
        multiplier = b.parameter("multiplier", [2**14], "int32")
        stored = {"low": -99, "high": 99, "dtype": "int8"}
        x = b.emit(integer.requantise(x, multiplier, name="q", shift=14, **stored))
        factor = b.parameter("factor", [2**14], "int16")
        exponential = ShortExponential.from_scale(1e-3)
        attention = Attention("attended", 2, "short", exponential, 7, -99, 99)
        operands = {"q": x, "k": x, "v": x, "mask": b.mask, "multiplier": factor}
        return b.emit(call_operator(attention, operands))

    program = read_program(builder.module(body))
    report = analyse_ranges(program, builder.parameters)
    low, high = report.details["attended"].stages["score"]
    assert low == -high < 0
    given = inputs_of((2, 9), np.random.default_rng(0))
    given["input_ids"] %= 30
    assert check_unbounded(program, given, builder.parameters, report.details) == []


def test_channels_before_the_first_are_refused(builder: Builder, messages: Messages) -> None:
    """Compiled, they read what lies before a value; NumPy refused them, the analysis did not."""

    def body(b: Builder) -> object:
        table = b.values("table", 127, (30, 4), "int8")
        one = b.parameter("one", [1], "int32")
        x = b.emit(integer.embedding(b.ids, table, one, name="x", shift=0))
        channels = b.parameter("channels", [2, -1], "int32")
        return b.emit(integer.gather_channels(x, channels, name="gathered"))

    module = builder.module(body)
    with messages.raises(RangeError):
        analyse_ranges(module, builder.parameters)
    with pytest.raises(RangeError):
        evaluate(
            module,
            {"input_ids": np.zeros((1, 1), np.int64), "attention_mask": np.ones((1, 1), np.int64)},
            builder.parameters,
        )


def test_gain_and_offset_of_other_rows_are_refused(builder: Builder, messages: Messages) -> None:
    """Compiled, the offset was read beyond its end."""
    from ibert_tvm.relay_passes.integer.operators.norms import LayerNorm
    from ibert_tvm.relay_passes.integer.types import TensorType
    from ibert_tvm.relay_passes.spec.layer_norm import LayerNormConstants

    norm = LayerNorm("n", LayerNormConstants(2**20 - 1, 2**40, 40, 16, 3), 7, -99, 99, "int8")
    types = {
        "x": TensorType((2, 5, 12), "int32"),
        "gain": TensorType((12,), "int32"),
        "offset": TensorType((1, 3), "int32"),
    }
    with messages.raises(LoweringError):
        norm.result_type(types)
