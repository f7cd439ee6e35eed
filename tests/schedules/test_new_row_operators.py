"""Row operators that no schedule has heard of are scheduled by what their stages do, everywhere."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tvm

from ibert_tvm.schedules import schedule_kernel
from ibert_tvm.schedules.rows import RowsRule
from ibert_tvm.targets import get_target
from tests.arm import bare_kernels
from tests.arm.linux_kernels import BoardKernels
from tests.arm.row_kernels import RowKernel
from tests.arm.tools import needs
from tests.cuda.stand_in_gpu import run_kernel
from tests.examples import examples
from tests.schedules.new_row_operators import OPERATORS, ROWS

Operator = Callable[[], RowKernel]


def poisoned(kernel: RowKernel) -> list[np.ndarray]:
    """Arguments for a call whose results are wrong wherever nothing is written."""
    return [*kernel.inputs, *(np.full_like(array, 0x5A) for array in kernel.outputs)]


def check(kernel: RowKernel, results: list[np.ndarray]) -> None:
    for got, expected in zip(results[-len(kernel.outputs) :], kernel.outputs, strict=True):
        np.testing.assert_array_equal(got, expected, err_msg=kernel.name)


@pytest.mark.parametrize("operator", OPERATORS)
def test_on_this_processor(operator: Operator) -> None:
    kernel = operator()
    scheduled = schedule_kernel(kernel.name, kernel.func, get_target("x86-64"))
    run = tvm.compile(scheduled.with_attr("global_symbol", "main"), target="llvm")["main"]
    tensors = [tvm.runtime.tensor(array) for array in poisoned(kernel)]
    run(*tensors)
    check(kernel, [tensor.numpy() for tensor in tensors])


@pytest.mark.representatives(1)
@pytest.mark.qemu
@pytest.mark.parametrize(
    ("name", "compiler", "emulator"),
    [
        ("rpi4", "aarch64-linux-gnu-gcc", "qemu-aarch64"),
        ("armv7-neon", "arm-linux-gnueabihf-gcc", "qemu-arm"),
    ],
)
def test_on_boards(name: str, compiler: str, emulator: str) -> None:
    """The second one sums by lanes."""
    needs(compiler, emulator)
    kernels = {kernel.name: kernel for kernel in (operator() for operator in OPERATORS)}
    target = get_target(name)
    functions = {key: schedule_kernel(key, k.func, target) for key, k in kernels.items()}
    board = BoardKernels(functions, target)
    for key, kernel in kernels.items():
        check(kernel, board.run(key, *poisoned(kernel)))


@pytest.mark.representatives(2)
@pytest.mark.qemu
@pytest.mark.parametrize("target", examples(["cortex-m4", "cortex-m55"], "cortex-m55"))
@pytest.mark.parametrize("operator", OPERATORS)
def test_on_microcontrollers(operator: Operator, target: str) -> None:
    needs("arm-none-eabi-gcc", "qemu-system-arm")
    kernel = operator()
    outputs, counts = bare_kernels.run(kernel, get_target(target))
    check(kernel, outputs)
    assert counts.floating_point == 0


@pytest.mark.representatives(2)
@pytest.mark.parametrize("operator", OPERATORS)
def test_on_a_gpu(operator: Operator) -> None:
    kernel = operator()
    scheduled = schedule_kernel(kernel.name, kernel.func, get_target("t4"))
    check(kernel, run_kernel(scheduled, poisoned(kernel)))


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("name", ["x86-64", "cortex-m4"])
def test_rows_are_parallel_and_worked_on_at_once(operator: Operator, name: str) -> None:
    kernel, target = operator(), get_target(name)
    schedule = RowsRule().apply(kernel.func, target)
    text = schedule.mod["main"].script(show_meta=False)
    assert f"T.parallel({ROWS}, " in text
    if kernel.name in ("root_mean_square_like", "softmax_like", "requantise_by_maximum"):
        # All of a row in one loop over rows: nothing of it waits for another row.
        outer = [line for line in text.splitlines() if line.startswith("    for ")]
        assert len(outer) == 1
    if kernel.name != "totals":
        assert ("T.vectorized(" in text) == (target.vector_lanes > 1)
