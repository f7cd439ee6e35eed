"""Compile a program in memory and run it beside its NumPy evaluation."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import tvm
from tvm import relax

from ibert_tvm.relay_passes.integer.evaluate import evaluate, evaluate_all
from ibert_tvm.relay_passes.integer.ranges import RangeReport, analyse_ranges
from ibert_tvm.relay_passes.integer.unbounded import check_unbounded
from ibert_tvm.relay_passes.passes import IntegerProgram, function_name
from ibert_tvm.schedules import schedule_module
from ibert_tvm.targets.build import build_executable
from tests.lowering import lowered
from tests.twins import runnable_target


class Compiled:
    """A program compiled for one target."""

    def __init__(self, program: IntegerProgram, target: str, shapes: list[tuple[int, int]]) -> None:
        description = runnable_target(target)
        made = lowered(program, description, shapes).program
        module = schedule_module(made.module, description)
        self.machine = relax.VirtualMachine(build_executable(module, description), tvm.cpu())
        self.parameters = [tvm.runtime.tensor(a) for a in made.parameters.values()]

    def __call__(self, ids: np.ndarray, mask: np.ndarray) -> list[np.ndarray]:
        """Run the function of the inputs' shape."""
        function = self.machine[function_name(*ids.shape)]
        outputs = function(tvm.runtime.tensor(ids), tvm.runtime.tensor(mask), *self.parameters)
        many = not isinstance(outputs, tvm.runtime.Tensor)
        return [output.numpy() for output in (outputs if many else [outputs])]


def inputs_of(
    batch: int, seq_len: int, vocabulary: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Random ids, and a mask: row 0 whole, row 1 fully masked, the others padded at the end."""
    random = np.random.default_rng(seed)
    ids = random.integers(2, vocabulary, (batch, seq_len)).astype("int32")
    mask = np.ones((batch, seq_len), "int32")
    for row in range(1, batch):
        mask[row, 0 if row == 1 else max(1, seq_len // 2) :] = 0
    return ids, mask


def captured_in_intervals(
    program: IntegerProgram, inputs: Mapping[str, np.ndarray], max_seq_len: int | None = None
) -> tuple[RangeReport, dict[str, np.ndarray]]:
    """Evaluate a program: no value or stage leaves its interval, in unbounded integers too.

    Returns
    -------
    report, captured
        The proven intervals, and all values by name.
    """
    report = analyse_ranges(program.module, program.parameters, max_seq_len=max_seq_len)
    assert check_unbounded(program.module, inputs, program.parameters, report.details) == []
    _, captured = evaluate_all(program.module, inputs, program.parameters)
    for name, value in captured.items():
        low, high = report.values[name]
        assert low <= value.min() and value.max() <= high, name
    return report, captured


def check_compiled(program: IntegerProgram, target: str, ids: np.ndarray, mask: np.ndarray) -> None:
    """Compile a program for this processor, and compare it with its specification."""
    expected = reference(program, ids, mask)
    for got, want in zip(Compiled(program, target, [ids.shape])(ids, mask), expected, strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)
        assert np.unique(want).size > 3, "a constant output would prove nothing"


def reference(program: IntegerProgram, ids: np.ndarray, mask: np.ndarray) -> list[np.ndarray]:
    """The specification's answer."""
    return evaluate(program.module, {"input_ids": ids, "attention_mask": mask}, program.parameters)
