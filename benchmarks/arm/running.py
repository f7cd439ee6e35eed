"""Single kernels on ARM targets, run under QEMU, compared with the specification, and counted."""

from __future__ import annotations

import subprocess

import numpy as np

from ibert_tvm.schedules import schedule_kernel
from ibert_tvm.targets import TargetDescription
from ibert_tvm.targets.emulation import emulator_command
from tests.arm import bare_kernels
from tests.arm.linux_kernels import BoardKernels
from tests.arm.row_program import RowKernel

from .counting import Counting, Counts
from .errors import CountingError

__all__ = ["count_kernel"]

_SYMBOL = "ibert_kernel_counted"
_POISON = 0x5A
_SECONDS = 600


def count_kernel(kernel: RowKernel, target: TargetDescription) -> Counts:
    """Compile a kernel as a model's kernels are, run it on its inputs, compare, and count.

    Parameters
    ----------
    kernel
        Unscheduled kernel with inputs and expected outputs.
    target
        An ARM target.

    Returns
    -------
    Counts
        From the kernel's first instruction to its return.

    Raises
    ------
    CountingError
        If a result differs from the specification: counts of a wrong kernel mean nothing.
    """
    if target.system == "linux":
        outputs, counts = _on_linux(kernel, target)
    else:
        outputs, counts = bare_kernels.run(kernel, target)
    for index, (output, expected) in enumerate(zip(outputs, kernel.outputs, strict=True)):
        wrong = int(np.count_nonzero(output != expected))
        if wrong:
            raise CountingError(
                what=f"kernel {kernel.name} is wrong on {target.name}",
                where=f"result {index} of {len(kernel.outputs)}",
                why=f"{wrong} of {expected.size} entries differ from the specification",
                todo="see the tests of its schedule",
            )
    return counts


def _on_linux(kernel: RowKernel, target: TargetDescription) -> tuple[list[np.ndarray], Counts]:
    scheduled = schedule_kernel(kernel.name, kernel.func, target)
    built = BoardKernels({_SYMBOL: scheduled}, target)
    poison = [np.full_like(array, _POISON) for array in kernel.outputs]
    workspace = np.full(max(built.workspaces[_SYMBOL], 1), _POISON, np.uint8)
    sent = [np.ascontiguousarray(array) for array in (*kernel.inputs, *poison, workspace)]
    words = [np.array([0, len(sent)], "<i4").tobytes()]
    for array in sent:
        words += [np.array([array.nbytes], "<i4").tobytes(), array.tobytes()]
    with Counting(built.program, target, within=_SYMBOL) as counting:
        emulator, *options = emulator_command(target)
        command = [emulator, "-plugin", counting.argument, *options, str(built.program)]
        done = subprocess.run(
            command, input=b"".join(words), capture_output=True, check=False, timeout=_SECONDS
        )
        if done.returncode != 0:
            raise CountingError(
                what=f"kernel {kernel.name} failed on {target.name}",
                where=" ".join(command),
                why=done.stderr.decode(errors="replace").strip()[-1000:]
                or f"exit status {done.returncode}",
                todo="see the tests of its schedule",
            )
        counts = counting.counts()
    results, offset = [], 4  # behind what the kernel returned
    for array in sent:
        data = done.stdout[offset : offset + array.nbytes]
        results.append(np.frombuffer(data, array.dtype).reshape(array.shape))
        offset += array.nbytes
    return results[len(kernel.inputs) : -1], counts
