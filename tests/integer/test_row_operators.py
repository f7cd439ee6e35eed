"""Scales per row: evaluation, intervals, unbounded integers and compiled code agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from tvm import relax

from ibert_tvm.relay_passes import integer
from ibert_tvm.relay_passes.errors import LoweringError, RangeError
from ibert_tvm.relay_passes.integer.evaluate import evaluate
from ibert_tvm.relay_passes.integer.ranges import analyse_ranges
from ibert_tvm.relay_passes.passes import IntegerProgram
from tests.examples import examples
from tests.passes.execution import captured_in_intervals, check_compiled, inputs_of
from tests.passes.models import ProgramBuilder
from tests.passes.small import CHANNELS, small_program


def program(seed: int, high: int = 2**15 - 1) -> IntegerProgram:
    """An embedding, a product with its rows in 8 bits, and another one of what that gives."""
    random = np.random.default_rng(seed)
    shift = int(random.integers(8, 13))

    def body(p: ProgramBuilder, inputs: Mapping[str, relax.Var]) -> Sequence[relax.Var]:
        def product(x: relax.Var, name: str) -> relax.Var:
            magnitude = p.emit(integer.row_magnitude(x, name=f"{name}.magnitude"))
            bounds = {"low": -127, "high": 127, "dtype": "int8"}
            rows = p.emit(integer.quantise_rows(x, magnitude, name=f"{name}.rows", **bounds))
            w = p.integers(f"{name}.w", -127, 127, (CHANNELS, CHANNELS), "int8")
            b = p.integers(f"{name}.b", 0, 0, (CHANNELS,), "int32")
            sums = p.emit(integer.linear(rows, w, b, name=name))
            bias = p.integers(f"{name}.bias", -(2**20), 2**20, (CHANNELS,), "int32")
            scaled = {"name": f"{name}.scaled", "shift": shift}
            return p.emit(integer.scale_rows(sums, magnitude, bias, **scaled))

        x = p.words(inputs["input_ids"], CHANNELS, 7, rows=50)
        m = p.integers("m", 2**13, 2**15, (1,), "int32")
        stored = {"shift": 15, "low": -high, "high": high, "dtype": "int16"}
        x = p.emit(integer.requantise(x, m, name="entries", **stored))
        x = product(x, "up")
        x = p.emit(integer.requantise(x, m, name="between", **{**stored, "shift": 26}))
        x = product(x, "down")
        return [p.emit(integer.mask_tokens(x, inputs["attention_mask"], name="out"))]

    return small_program(body, seed)


def arrays(batch: int, length: int, seed: int) -> dict[str, np.ndarray]:
    ids, mask = inputs_of(batch, length, 50, seed)
    return {"input_ids": ids, "attention_mask": mask}


@pytest.mark.parametrize("high", [2**15 - 1, 3])
@pytest.mark.parametrize("seed", examples(range(8), 0))
def test_nothing_leaves_its_interval(seed: int, high: int) -> None:
    p, inputs = program(seed, high), arrays(3, 5, seed)
    report, captured = captured_in_intervals(p, inputs, 8)
    assert report.values["up.magnitude"][0] == 1
    assert max(report.details[name].width for name in ("up.rows", "up.scaled")) <= 32
    # Wherever a row has an entry, its largest one is +-127.
    largest = np.abs(captured["up.rows"]).max(-1)
    assert (largest == np.where(captured["entries"].any(-1), 127, 0)).all()


@pytest.mark.parametrize(
    "target", examples(["x86-64-v3", "x86-avx512-vnni", "x86-avx-vnni", "x86-64"], "x86-64-v3")
)
def test_compiled_programs_equal_the_specification(target: str) -> None:
    check_compiled(program(1), target, *arrays(3, 5, 1).values())


def test_a_row_of_its_own_is_the_same_in_any_batch() -> None:
    p, inputs = program(2), arrays(3, 5, 2)
    (together,) = evaluate(p.module, inputs, p.parameters)
    for row in range(3):
        kept = int(inputs["attention_mask"][row].sum())
        alone = {k: v[row : row + 1, :kept] for k, v in inputs.items()}
        if kept:
            (found,) = evaluate(p.module, alone, p.parameters)
            np.testing.assert_array_equal(found[0], together[row, :kept])


def test_a_magnitude_of_zero_is_taken_for_one() -> None:
    """Also of a file in which something else is named as magnitude: nothing divides by 0."""

    def body(p: ProgramBuilder, inputs: Mapping[str, relax.Var]) -> Sequence[relax.Var]:
        x = inputs["x"]
        wrong = p.emit(integer.split_channels(x, name="wrong", index=0, parts=CHANNELS))
        bounds = {"low": -127, "high": 127, "dtype": "int8"}
        rows = p.emit(integer.quantise_rows(x, wrong, name="rows", **bounds))
        return [p.emit(integer.mask_tokens(rows, inputs["attention_mask"], name="out"))]

    p = small_program(body, x="int32")
    x = np.arange(CHANNELS)[None, None].repeat(2, 1)
    x[0, 1] -= 1
    inputs = {"x": x, "input_ids": np.zeros((1, 2)), "attention_mask": np.ones((1, 2))}
    analyse_ranges(p.module, p.parameters, max_seq_len=8)
    (out,) = evaluate(p.module, {k: v.astype("int64") for k, v in inputs.items()}, p.parameters)
    np.testing.assert_array_equal(out[0], np.sign(x[0]) * 127)


def test_a_magnitude_has_one_entry_per_row() -> None:
    def body(p: ProgramBuilder, inputs: Mapping[str, relax.Var]) -> Sequence[relax.Var]:
        bounds = {"low": -127, "high": 127, "dtype": "int8"}
        return [p.emit(integer.quantise_rows(inputs["x"], inputs["x"], name="r", **bounds))]

    with pytest.raises(LoweringError) as caught:
        small_program(body, x="int32")
    assert caught.value.what == f"operand magnitude has {CHANNELS} entries where it has 1"
    assert caught.value.why == "integer.quantise_rows takes x [..., C] and magnitude [..., 1]"


def test_sums_that_would_leave_32_bits_are_refused() -> None:
    def body(p: ProgramBuilder, inputs: Mapping[str, relax.Var]) -> Sequence[relax.Var]:
        x = inputs["x"]
        magnitude = p.emit(integer.row_magnitude(x, name="magnitude"))
        bias = p.integers("bias", 0, 1, (CHANNELS,), "int32")
        return [p.emit(integer.scale_rows(x, magnitude, bias, name="scaled", shift=14))]

    p = small_program(body, x="int32")
    with pytest.raises(RangeError, match="does not fit int32"):
        analyse_ranges(p.module, p.parameters, max_seq_len=8)
