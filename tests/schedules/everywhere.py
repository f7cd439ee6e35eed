"""Kernels with inputs and the specification's results, run on every family of targets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx

from ibert_tvm.relay_passes.integer.evaluate import evaluate
from ibert_tvm.relay_passes.integer.relax_ops import operator_name
from ibert_tvm.relay_passes.passes import IntegerProgram
from ibert_tvm.relay_passes.passes.pipeline import Phase
from ibert_tvm.relay_passes.passes.program import bindings
from ibert_tvm.schedules import schedule_kernel
from ibert_tvm.targets import TargetDescription, get_target
from tests.arm import bare_kernels
from tests.arm.linux_kernels import BoardKernels
from tests.arm.row_program import RowKernel
from tests.arm.tools import board, needs
from tests.cuda.stand_in_gpu import run_kernel
from tests.lowering import lowered
from tests.schedules.machine import Kernels


def program_kernels(
    program: IntegerProgram,
    target: TargetDescription,
    shape: tuple[int, int],
    wanted: Callable[[tirx.PrimFunc], bool],
    phases: Sequence[Phase],
    seed: int = 1,
) -> list[RowKernel]:
    """Some kernels of a program, with random operands within their proven intervals."""
    made = lowered(program, target, [shape], phases)
    fused, found = made.fused, []
    for var, func in made.program.module.functions_items():
        if not isinstance(func, tirx.PrimFunc) or not wanted(func):
            continue
        random = np.random.default_rng(seed)
        arrays = {}
        function = fused.module[var.name_hint]
        tables = _looked_up(function)
        for param in function.params:
            extents = tuple(int(n) for n in param.ty.shape.values)
            if param.name in fused.parameters:
                arrays[param.name] = fused.parameters[param.name]
            else:
                low, high = made.bounds.get(param.name, (0, 1))
                if param.name in tables:
                    low, high = 0, tables[param.name] - 1
                values = random.integers(low, high, extents, endpoint=True)
                arrays[param.name] = values.astype(str(param.ty.dtype))
        results = evaluate(fused.module, {}, arrays, var.name_hint)
        stored = [
            np.ascontiguousarray(array.reshape([int(n) for n in param.shape]))
            for array, param in zip([*arrays.values(), *results], func.params, strict=True)
        ]
        count, name = len(arrays), f"{var.name_hint}_{shape[1]}"
        found.append(RowKernel(name, func, stored[:count], stored[count:], results[0].size))
    return found


def _looked_up(function: relax.Function) -> dict[str, int]:
    """Rows of the table that an operand of ids counts, by the operand's name."""
    return {
        binding.value.args[0].name: int(binding.value.args[1].ty.shape.values[0])
        for binding in bindings(function)
        if operator_name(binding.value) == "integer.embedding"
    }


def poisoned(kernel: RowKernel) -> list[np.ndarray]:
    """Arguments for a call whose results are wrong wherever nothing is written."""
    return [*kernel.inputs, *(np.full_like(array, 0x5A) for array in kernel.outputs)]


def check(kernel: RowKernel, results: Sequence[np.ndarray]) -> None:
    """Compare what a call left with what the specification says."""
    for got, expected in zip(results[-len(kernel.outputs) :], kernel.outputs, strict=True):
        np.testing.assert_array_equal(got.reshape(expected.shape), expected, err_msg=kernel.name)


def check_on_this_processor(kernels: Sequence[RowKernel], target: TargetDescription) -> None:
    """Compile kernels for a target that this processor can run, and run them."""
    functions = {k.name: schedule_kernel(k.name, k.func, target) for k in kernels}
    compiled = Kernels(functions, target)
    for kernel in kernels:
        tensors = [tvm.runtime.tensor(array) for array in poisoned(kernel)]
        compiled.library[kernel.name](*tensors)
        check(kernel, [tensor.numpy() for tensor in tensors])


def check_on_board(kernels: Callable[[TargetDescription], Sequence[RowKernel]], name: str) -> None:
    """Cross-compile kernels for a board with Linux, and run them in its emulator."""
    target = board(name)
    made = kernels(target)
    functions = {k.name: schedule_kernel(k.name, k.func, target) for k in made}
    compiled = BoardKernels(functions, target)
    for kernel in made:
        check(kernel, compiled.run(kernel.name, *poisoned(kernel)))


def check_on_microcontroller(kernel: RowKernel, target: TargetDescription) -> None:
    """Run a kernel on a bare-metal target, in its emulator."""
    needs("arm-none-eabi-gcc", "qemu-system-arm")
    outputs, counts = bare_kernels.run(kernel, target)
    check(kernel, outputs)
    assert counts.floating_point == 0


def check_on_gpu(kernel: RowKernel, name: str = "t4", rules: Sequence[Any] | None = None) -> None:
    """Run a kernel's CUDA source on the processor that stands in for a GPU."""
    scheduled = schedule_kernel(kernel.name, kernel.func, get_target(name), rules)
    check(kernel, run_kernel(scheduled, poisoned(kernel), name))
