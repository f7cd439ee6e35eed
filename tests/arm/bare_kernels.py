"""Single kernels as objects with a C signature, and runs of them on an emulated microcontroller."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tvm

from benchmarks.arm.counting import Counting, Counts
from ibert_tvm.targets import TargetDescription
from ibert_tvm.targets.aot.lower import KernelSignature, lower_kernels
from ibert_tvm.targets.aot.model import KernelParameter
from ibert_tvm.targets.aot.objects import kernel_object
from ibert_tvm.targets.microkernels import compile_microkernels, microkernel_symbols

from .qemu_board import run_kernel
from .row_program import RowKernel
from .softmax_kernel import scheduled

SYMBOL = "ibert_kernel_tested"
_ALIGNMENT = 16


@dataclass(frozen=True)
class BareObject:
    """A kernel's relocatable object.

    Attributes
    ----------
    data
        ELF.
    undefined
        Symbols that it calls.
    workspace_bytes
        Memory that it is given.
    """

    data: bytes
    undefined: tuple[str, ...]
    workspace_bytes: int


def build_kernel(kernel: RowKernel, target: TargetDescription) -> BareObject:
    """Schedule and compile a kernel."""
    function = scheduled(kernel, target)
    written = [False] * len(kernel.inputs) + [True] * len(kernel.outputs)
    parameters = tuple(
        KernelParameter(str(array.dtype), array.size, out, _ALIGNMENT)
        for array, out in zip((*kernel.inputs, *kernel.outputs), written, strict=True)
    )
    signature = KernelSignature(SYMBOL, parameters)
    module = tvm.IRModule({"main": function})
    lowered = lower_kernels(module, {"main": signature}, target)["main"]
    provided = microkernel_symbols(target)
    data, undefined = kernel_object(SYMBOL, lowered.function, target, provided)
    return BareObject(data, undefined, lowered.workspace_bytes)


def run(
    kernel: RowKernel, target: TargetDescription, built: BareObject | None = None
) -> tuple[list[np.ndarray], Counts]:
    """Run a kernel on the target's board.

    Returns
    -------
    list of numpy.ndarray, Counts
        Its outputs, whose memory held other numbers before, and the instructions of the call.
    """
    built = built or build_kernel(kernel, target)
    poison = [np.full_like(array, 0x5A) for array in kernel.outputs]
    workspace = np.full(max(built.workspace_bytes, 1), 0xA5, "uint8")
    arguments = [*kernel.inputs, *poison, workspace]
    counter: list[Counting] = []

    def plugin(elf: Path) -> str:
        counter.append(Counting(elf, target, within=SYMBOL).__enter__())
        return counter[0].argument

    try:
        done = run_kernel(
            target,
            [built.data, *compile_microkernels(target).values()],
            SYMBOL,
            arguments,
            plugin=plugin,
        )
        counts = counter[0].counts()
    finally:
        for each in counter:
            each.__exit__(None, None, None)
    assert done.status == 0
    return done.arrays[len(kernel.inputs) : -1], counts
