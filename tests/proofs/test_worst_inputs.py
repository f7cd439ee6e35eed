"""Inputs made to be the worst: intervals of a layer are reached, and roundings are met exactly.

The largest sum of a row of weights has the signs of the weights as its input; an input with a given
sum, just at a rounding or just before, is the solver's. Vectors are rows of an embedding, so that a
program's ids choose them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ibert_tvm as ibert
from ibert_tvm.relay_passes import integer
from ibert_tvm.relay_passes.integer.evaluate import evaluate
from ibert_tvm.relay_passes.integer.program import Program
from ibert_tvm.relay_passes.integer.ranges import analyse_ranges
from ibert_tvm.relay_passes.integer.relax_ops import read_program
from ibert_tvm.relay_passes.integer.unbounded import check_unbounded
from ibert_tvm.relay_passes.spec.fixed_point import requantise
from ibert_tvm.runtime import load_library
from tests.examples import examples
from tests.integer.conftest import Builder
from tests.programs.comparison import as_model
from tests.programs.generator import VOCABULARY

from .exact import z3

DEPTH, ROWS, BOUND, SHIFT, LIMIT = 12, 4, 127, 24, 127
_EACH = VOCABULARY // ROWS


def _vector(weights: np.ndarray, total: int) -> np.ndarray:
    """Some input of a row of weights that has a given sum of products."""
    solver, entries = z3.Solver(), z3.Ints([f"x{k}" for k in range(DEPTH)])
    solver.add([z3.And(x >= -BOUND, x <= BOUND) for x in entries])
    solver.add(z3.Sum([int(w) * x for w, x in zip(weights, entries, strict=True)]) == total)
    assert solver.check() == z3.sat, total
    model = solver.model()
    return np.array([model.eval(x, model_completion=True).as_long() for x in entries])


def _sums(multiplier: int, bias: int, largest: int) -> list[int]:
    """Where the result changes: the last sum before it, and the first of the next result."""
    sums = np.arange(-largest, largest + 1)
    results = requantise(sums + bias, multiplier, SHIFT)
    (steps,) = np.nonzero(np.diff(results))
    places = [steps[0], steps[-1], *steps[np.argsort(np.abs(results[steps]))[:2]]]
    return [int(sums[place + next_]) for place in places for next_ in (0, 1)]


def _program() -> tuple[Program, dict[str, np.ndarray], np.ndarray]:
    """A layer whose inputs are the worst of each of its rows, and the rows' largest sums."""
    random = np.random.default_rng(1)
    weights = random.integers(-127, 128, (ROWS, DEPTH))
    weights[:, 0] = 1  # of which every sum can be made
    bias = random.integers(-5000, 5000, ROWS)
    largest = np.abs(weights).sum(axis=1) * BOUND
    # Of factors so large that the last results are cut off.
    multiplier = (LIMIT * 1.1 / largest * 2**SHIFT).astype(np.int64)
    table = []
    for row in range(ROWS):
        ends = np.where(weights[row] < 0, -BOUND, BOUND)
        middle = _sums(int(multiplier[row]), int(bias[row]), int(largest[row]) - 2 * BOUND)
        table += [ends, -ends, *(_vector(weights[row], total) for total in middle)]
    b = Builder()

    def body(b: Builder) -> object:
        one = b.parameter("one", [1], "int32")
        vectors = b.parameter("vectors", np.array(table), "int8")
        x = b.emit(integer.embedding(b.ids, vectors, one, name="x", shift=0))
        unit = b.parameter("unit", [1], "int32")
        ends = {"low": -BOUND, "high": BOUND, "dtype": "int8"}
        x = b.emit(integer.requantise(x, unit, name="bytes", shift=0, **ends))
        w, c = b.parameter("w", weights, "int8"), b.parameter("c", bias, "int32")
        y = b.emit(integer.linear(x, w, c, name="sums"))
        m = b.parameter("m", multiplier, "int32")
        ends = {"low": -LIMIT, "high": LIMIT, "dtype": "int8"}
        return b.emit(integer.requantise(y, m, name="result", shift=SHIFT, **ends))

    return read_program(b.module(body)), b.parameters, largest + bias


@pytest.fixture(scope="module")
def worst() -> tuple[Program, dict[str, np.ndarray], np.ndarray]:
    return _program()


def _inputs() -> dict[str, np.ndarray]:
    ids = np.arange(VOCABULARY, dtype=np.int32).reshape(ROWS, _EACH)
    return {"input_ids": ids, "attention_mask": np.ones_like(ids)}


def test_intervals_are_reached_and_not_left(
    worst: tuple[Program, dict[str, np.ndarray], np.ndarray],
) -> None:
    program, parameters, largest = worst
    report = analyse_ranges(program, parameters)
    assert check_unbounded(program, _inputs(), parameters, report.details) == []
    sums = Program(program.inputs, program.parameters, program.steps, ("sums",))
    (values,) = evaluate(sums, _inputs(), parameters)
    proven = report.details["sums"]
    assert (values.max(), values.min()) == (proven.high, proven.low)
    assert proven.high == largest.max()


@pytest.mark.parametrize(
    "target", examples(["x86-64", "x86-64-v3", "rpi4", "armv7-neon", "armv6-softfloat"], "x86-64")
)
def test_roundings_are_those_of_the_reference(
    worst: tuple[Program, dict[str, np.ndarray], np.ndarray], target: str, tmp_path: Path
) -> None:
    program, parameters, _ = worst
    (wanted,) = evaluate(program, _inputs(), parameters)
    # Each row of vectors was made for the channel of its number: neighbours differ in one.
    for row in range(ROWS):
        made = wanted[row, 2:, row].astype(int)
        assert set(made[1::2] - made[::2]) <= {0, 1} and 1 in made[1::2] - made[::2]
    compiled = ibert.compile(as_model(program, parameters), target, [(ROWS, _EACH)], runtime="none")
    path = compiled.export(tmp_path / "worst.so")
    emulate = not target.startswith("x86")
    outputs = load_library(path, emulate=emulate).run(**_inputs(), dequantize=False)
    np.testing.assert_array_equal(outputs["o0"].values, wanted)
