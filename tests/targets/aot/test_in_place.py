"""Results over arguments: what is proved of a kernel's loops holds when it runs."""

from __future__ import annotations

import ctypes
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from tvm.script import from_source

from ibert_tvm.targets.aot.in_place import aliased, writable_over
from ibert_tvm.targets.aot.lower import KernelSignature, LoweredKernel, lower_kernels
from ibert_tvm.targets.aot.model import KernelParameter
from ibert_tvm.targets.aot.objects import kernel_object
from ibert_tvm.targets.toolchain import find_linker

from .test_lower import target_of

_MODULE = """
@I.ir_module(s_tir=True)
class Module:
    @T.prim_func(s_tir=True)
    def kernel(a: T.Buffer({a.shape}, "{a.dtype}"), b: T.Buffer({b.shape}, "{b.dtype}")):
        T.func_attr({{"tirx.noalias": True}})
        with T.sblock("root"):
{body}
"""
# A block of rows is copied, clamped to those that there are, before its results are written.
_BLOCKS = """
for m in range(3):
    with T.sblock("block"):
        v = T.axis.spatial(3, m)
        T.reads(a[0:10, 0:16])
        T.writes(b[0:10, 0:{columns}])
        seen = T.sblock_alloc_buffer((4, 16), "int32")
        for r, k in T.grid(4, 16):
            seen[r, k] = T.Cast("int32", a[T.min(v * 4 + r, 9), k])
        for n, r in T.grid({columns}, T.min(4, 10 - v * 4)):
            b[v * 4 + r, n] = T.Cast("{dtype}", seen[r, n] * 3 + seen[r, 15 - n])
"""
_ENTRIES = """
for i in {loop}(160):
    with T.sblock("entry"):
        v = T.axis.spatial(160, i)
        b[v] = a[{place}] + 1
"""
# Every entry is read again, once all results were written.
_AGAIN = """
for i in range(160):
    with T.sblock("first"):
        v = T.axis.spatial(160, i)
        b[v] = a[v] * 5
for i in range(160):
    with T.sblock("second"):
        v = T.axis.spatial(160, i)
        T.reads(b[v], a[v])
        T.writes(b[v])
        b[v] = b[v] + a[v]
"""
# Its address is all that is known of what a function in C reads.
_ADDRESS = """
for i in range(160):
    with T.sblock("entry"):
        v = T.axis.spatial(160, i)
        T.reads(a[0:160])
        b[v] = T.call_extern("int32", "function", T.address_of(a[v]))
"""


@dataclass(frozen=True)
class Case:
    """A kernel of one argument and one result."""

    a: np.ndarray
    b: np.ndarray
    body: str


def _blocks(columns: int, dtype: str) -> Case:
    body = _BLOCKS.format(columns=columns, dtype=dtype)
    return Case(np.zeros((10, 16), "int8"), np.zeros((10, columns), dtype), body)


def _flat(body: str) -> Case:
    return Case(np.zeros(160, "int32"), np.zeros(160, "int32"), body)


def _entries(place: str, loop: str = "range") -> Case:
    return _flat(_ENTRIES.format(place=place, loop=loop))


def _lowered(case: Case, system: str = "bare-metal") -> tuple[LoweredKernel, KernelSignature]:
    body = "".join(f"            {line}\n" for line in case.body.strip().splitlines())
    module = from_source(_MODULE.format(a=case.a, b=case.b, body=body))
    parameters = tuple(
        KernelParameter(str(array.dtype), array.size, written, array.itemsize)
        for array, written in ((case.a, False), (case.b, True))
    )
    signature = KernelSignature("ibert_kernel_x", parameters)
    threads = system == "linux"
    kernels = lower_kernels(module, {"kernel": signature}, target_of(system), threads)
    return kernels["kernel"], signature


CASES = [
    pytest.param(_blocks(4, "int32"), 0, id="as wide as its argument"),
    pytest.param(_blocks(8, "int8"), 32, id="narrower"),
    pytest.param(_blocks(8, "int32"), -128, id="wider"),
    pytest.param(_entries("v"), 0, id="entries"),
    pytest.param(_entries("T.min(v + 3, 159)"), 0, id="entries further on"),
    pytest.param(_entries("159 - v"), None, id="entries from the end"),
    pytest.param(_flat(_AGAIN), None, id="read again"),
]


@pytest.mark.representatives(1)
@pytest.mark.parametrize(("case", "lead"), CASES)
def test_a_result_over_an_argument_is_right_as_far_as_is_proved(
    case: Case, lead: int | None, tmp_path: Path
) -> None:
    kernel, signature = _lowered(case)
    found = writable_over(kernel.function, signature.parameters)
    assert found == ({} if lead is None else {(0, 1): lead})
    data, undefined = kernel_object(
        signature.symbol, aliased(kernel.function, {0, 1}), target_of("bare-metal")
    )
    assert set(undefined) <= {"memset", "memcpy"}
    (tmp_path / "kernel.o").write_bytes(data)
    command = [*find_linker(target_of()), "-shared", "-o", "kernel.so", "kernel.o"]
    subprocess.run(command, cwd=tmp_path, check=True)
    function = ctypes.CDLL(str(tmp_path / "kernel.so")).ibert_kernel_x
    argument = np.random.default_rng(0).integers(-100, 100, case.a.shape).astype(case.a.dtype)

    def result(distance: int) -> np.ndarray:
        """What the kernel writes so many bytes behind the beginning of its argument."""
        memory = np.zeros(8192, "uint8")
        first = 2048 - memory.ctypes.data % 64
        memory[first : first + argument.nbytes] = argument.reshape(-1).view("uint8")
        workspace = np.zeros(kernel.workspace_bytes + 64, "uint8")
        start = workspace.ctypes.data + -workspace.ctypes.data % 16
        address = memory.ctypes.data + first
        pointers = map(ctypes.c_void_p, (address, address + distance, start))
        assert function(*pointers) == 0
        begin = first + distance
        return memory[begin : begin + case.b.nbytes].view(case.b.dtype).copy()

    apart, size = result(2048), case.b.itemsize
    for distance in () if lead is None else (lead, lead - size, lead - 7 * size):
        np.testing.assert_array_equal(result(distance), apart)
    assert (result((lead or 0) + 4 * size) != apart).any()


def test_iterations_in_any_order_overwrite_nothing() -> None:
    kernel, signature = _lowered(_entries("v", "T.parallel"), "linux")
    assert writable_over(kernel.function, signature.parameters) == {}


def test_an_argument_whose_address_is_passed_on_is_not_overwritten() -> None:
    kernel, signature = _lowered(_flat(_ADDRESS))
    assert writable_over(kernel.function, signature.parameters) == {}


def test_types_that_c_takes_to_be_apart_stay_apart() -> None:
    """A compiler of the C form may move a store of int32 before a load of int16."""
    body = _ENTRIES.format(loop="range", place="v").replace("a[v]", 'T.Cast("int32", a[v])')
    case = Case(np.zeros(160, "int16"), np.zeros(160, "int32"), body)
    kernel, signature = _lowered(case)
    assert writable_over(kernel.function, signature.parameters) == {}
