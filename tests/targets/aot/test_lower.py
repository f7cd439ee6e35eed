"""Kernels with a C signature: what becomes of loops, buffers, and calls of the runtime."""

from __future__ import annotations

import ctypes
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tvm_ffi
from tvm import tirx
from tvm.script import from_source

from ibert_tvm.targets import TargetDescription, TargetError, get_target
from ibert_tvm.targets.aot import lower
from ibert_tvm.targets.aot.lower import KernelSignature, LoweredKernel, lower_kernels
from ibert_tvm.targets.aot.model import KernelParameter
from ibert_tvm.targets.aot.objects import kernel_object
from ibert_tvm.targets.machines.record import BareMetal, Toolchain
from ibert_tvm.targets.machines.thumb import THUMB
from ibert_tvm.targets.machines.x86_64 import X86_64
from ibert_tvm.targets.toolchain import find_linker
from tests.snapshots import Messages

assert isinstance(THUMB.system, BareMetal)
# This machine's instructions, as if there were no operating system.
_CLOSED = replace(
    X86_64,
    name="x86-64-closed",
    system=THUMB.system,
    toolchains={"": Toolchain("x86_64-linux-gnu", "gcc", command="gcc")},
)

# Two passes over the data, through a buffer that either fits a stack or does not.
_SUMS = Path(__file__).with_name("sums.tir").read_text(encoding="utf-8")

_FLOAT = Path(__file__).with_name("float.tir").read_text(encoding="utf-8")


def target_of(system: str = "linux") -> TargetDescription:
    target = get_target("x86-64")
    return target if system == "linux" else replace(target, machine=_CLOSED)


def lowered(
    source: str, name: str, count: int, description: TargetDescription, threads: bool = False
) -> LoweredKernel:
    parameters = (KernelParameter("int32", count, False, 4), KernelParameter("int32", 64, True, 4))
    signature = KernelSignature("ibert_kernel_x", parameters)
    return lower_kernels(from_source(source), {name: signature}, description, threads)[name]


def stack_buffers(kernel: LoweredKernel) -> list[int]:
    """Bytes of every buffer that is left on the stack."""
    sizes = []

    def look(statement: tirx.AllocBuffer) -> tirx.AllocBuffer:
        sizes.append(lower.buffer_bytes(statement.buffer))
        return statement

    tvm_ffi.structural_map(kernel.function.body, (tirx.AllocBuffer, look))
    return sizes


@pytest.mark.representatives(1)
@pytest.mark.parametrize(
    ("system", "size", "on_stack", "workspace"),
    [
        ("linux", 1024, [4096], 0),
        ("linux", 1025, [], 4160),
        ("bare-metal", 16, [64], 0),
        ("bare-metal", 17, [], 80),
        ("bare-metal", 1024, [], 4096),
    ],
)
def test_large_buffers_lie_in_the_workspace(
    system: str, size: int, on_stack: list[int], workspace: int
) -> None:
    kernel = lowered(_SUMS.format(size=size), "sums", 64 * size, target_of(system))
    assert stack_buffers(kernel) == on_stack
    assert kernel.workspace_bytes == workspace


@pytest.mark.representatives(1)
@pytest.mark.parametrize("size", [16, 17, 2000])
def test_a_kernel_is_a_c_function(size: int, tmp_path: Path) -> None:
    kernel = lowered(_SUMS.format(size=size), "sums", 64 * size, target_of("bare-metal"))
    data, undefined = kernel_object("ibert_kernel_x", kernel.function, target_of("bare-metal"))
    assert set(undefined) <= {"memset", "memcpy"}
    (tmp_path / "kernel.o").write_bytes(data)
    command = [*find_linker(target_of()), "-shared", "-o", "kernel.so", "kernel.o"]
    subprocess.run(command, cwd=tmp_path, check=True)
    function = ctypes.CDLL(str(tmp_path / "kernel.so")).ibert_kernel_x
    a = np.random.default_rng(0).integers(-1000, 1000, (64, size)).astype("int32")
    b = np.zeros(64, "int32")
    workspace = np.full(kernel.workspace_bytes + 64, 0x5A, "uint8")
    start = -workspace.ctypes.data % 16  # all that is promised of its alignment
    addresses = (a.ctypes.data, b.ctypes.data, workspace.ctypes.data + start)
    assert function(*map(ctypes.c_void_p, addresses)) == 0
    np.testing.assert_array_equal(b, (a[:, ::-1] * 3 * np.arange(1, size + 1)).sum(axis=1))
    end = start + kernel.workspace_bytes
    assert (workspace[:start] == 0x5A).all() and (workspace[end:] == 0x5A).all()


@pytest.mark.representatives(1)
@pytest.mark.parametrize(
    ("threads", "size", "kind", "workspace"),
    [
        (False, 2000, tirx.ForKind.SERIAL, 8000),
        (True, 2000, tirx.ForKind.PARALLEL, 0),
        (True, 20_000, tirx.ForKind.PARALLEL, 16 * 80_000),
    ],
)
def test_loops_become_serial_without_threads_and_buffers_of_tasks_have_places(
    threads: bool, size: int, kind: int, workspace: int
) -> None:
    kernel = lowered(_SUMS.format(size=size), "sums", 64 * size, target_of(), threads)
    assert kernel.workspace_bytes == workspace
    kinds = set()

    def look(loop: tirx.For) -> tirx.For:
        kinds.add(int(loop.kind))
        return loop

    tvm_ffi.structural_map(kernel.function.body, (tirx.For, look))
    assert kinds - {int(tirx.ForKind.SERIAL)} == {int(kind)} - {int(tirx.ForKind.SERIAL)}


def test_a_call_of_the_runtime_is_refused(messages: Messages) -> None:
    """Such symbols are weak: a linker would take them for granted, and a run would fault."""
    kernel = lowered(_SUMS.format(size=16), "sums", 1024, target_of(), threads=True)
    with messages.raises(TargetError):
        kernel_object("ibert_kernel_x", kernel.function, target_of())


def test_floating_point_on_a_processor_without_it_is_refused() -> None:
    description = target_of()
    soft = {**description.tvm_target, "mattr": ["+soft-float", "-sse", "-x87", "-mmx"]}
    description = replace(description, tvm_target=soft)
    kernel = lowered(_FLOAT, "halves", 64, description)
    with pytest.raises(TargetError, match=r"^a kernel calls __fixsfsi, __floatsisf, __mulsf3\n"):
        kernel_object("ibert_kernel_x", kernel.function, description)


def test_a_buffer_of_unknown_size_is_refused(messages: Messages) -> None:
    size = tirx.Var("n", "int32")
    buffer = tirx.decl_buffer((size,), "int32", "some")
    with messages.raises(TargetError):
        lower.buffer_bytes(buffer)
    assert lower.buffer_bytes(tirx.decl_buffer((3, 5), "int16")) == 30
