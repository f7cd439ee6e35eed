"""From TVM's source to an image: what is compiled, what is registered meanwhile, launches."""

from __future__ import annotations

from pathlib import Path

import pytest
import tvm
import tvm_ffi
from tvm.script import from_source

from ibert_tvm.targets import TargetError, get_target
from ibert_tvm.targets.cuda.audit import KernelRole
from ibert_tvm.targets.cuda.compile import (
    DEVICE_CODE,
    compile_device_code,
    kernel_roles,
    source_modules,
    with_all_registers,
    with_headers,
)
from ibert_tvm.targets.cuda.launches import Launch
from ibert_tvm.targets.cuda.pipeline import gpu_pipeline
from tests.snapshots import Messages

CREATE = "ffi.Module.create.cuda"
KERNEL = """
@T.prim_func(s_tir=True)
def scale(A: T.Buffer((6, 64), "int8"), B: T.Buffer((6, 64), "int32")):
    T.func_attr({"global_symbol": "scale", "tirx.noalias": True, "ibert.kernel": "scale",
                 "ibert.layer": "layer.0", "ibert.macs": 7})
    for y in T.thread_binding(3, thread="blockIdx.y"):
        for x in T.thread_binding(2, thread="blockIdx.x"):
            for t in T.thread_binding(64, thread="threadIdx.x"):
                with T.sblock("scale"):
                    kept = T.sblock_alloc_buffer((64,), "int16", scope="shared.dyn")
                    kept[63 - t] = T.Cast("int16", A[y * 2 + x, t])
                    T.tvm_storage_sync("shared.dyn")
                    B[y * 2 + x, t] = T.Cast("int32", kept[t]) * 3
"""


def build(launches: dict[str, Launch] | None = None):
    target = get_target("t4")
    module = tvm.IRModule({"scale": from_source(KERNEL)})
    with source_modules():
        executable = tvm.compile(
            module,
            target=tvm.target.Target(dict(target.tvm_target)),
            tir_pipeline=gpu_pipeline(target, {} if launches is None else launches),
        )
    return module, executable


def test_launches_are_read_off_the_device_code() -> None:
    launches: dict[str, Launch] = {}
    build(launches)
    assert launches == {"scale_kernel": Launch((2, 3, 1), (64, 1, 1), 128)}
    assert launches["scale_kernel"].to_json() == {
        "blocks": (2, 3, 1),
        "threads": (64, 1, 1),
        "dynamic_shared_bytes": 128,
    }


def test_the_source_is_compiled_with_all_headers(tmp_path: Path) -> None:
    module, executable = build()
    roles = kernel_roles(module)
    assert roles == {"scale": KernelRole("scale", "layer.0", 7)}
    seen = []

    def make(source: str, target) -> bytes:
        seen.append((source, target.name))
        return b"image"

    device = compile_device_code(executable, get_target("t4"), roles, {}, tmp_path, make)
    ((source, name),) = seen
    assert name == "t4"
    headers = sorted(path.name for path in DEVICE_CODE.glob("*.cuh"))
    assert "primitives.cuh" in headers
    includes = "".join(f'#include "{header}"\n' for header in headers)
    assert source == with_headers(device.source) == includes + device.source
    assert "scale_kernel" in device.source
    assert (device.image, device.audits) == (b"image", ())
    assert (tmp_path / "kernels.cu").read_text(encoding="utf-8") == source


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path, messages: Messages) -> None:
    _, executable = build()
    missing = tmp_path / "missing"
    with messages.raises(TargetError):
        compile_device_code(executable, get_target("t4"), {}, {}, missing)


def test_a_processor_has_no_device_code(messages: Messages) -> None:
    _, executable = build()
    with messages.raises(ValueError):
        compile_device_code(executable, get_target("x86-64"), {}, {})


def test_tvm_keeps_the_source_although_its_runtime_is_loaded() -> None:
    before = tvm_ffi.get_global_func(CREATE, allow_missing=True)

    def create(*_: object) -> None:
        raise AssertionError("a module of the CUDA runtime was made")

    tvm_ffi.register_global_func(CREATE, create, override=True)
    try:
        with pytest.raises(RuntimeError), source_modules():
            assert tvm_ffi.get_global_func(CREATE, allow_missing=True) is None
            raise RuntimeError
        assert tvm_ffi.get_global_func(CREATE, allow_missing=True) is not None
        build()
        assert tvm_ffi.get_global_func(CREATE, allow_missing=True) is not None
    finally:
        if before is None:
            tvm_ffi.registry.remove_global_func(CREATE)
        else:
            tvm_ffi.register_global_func(CREATE, before, override=True)


def test_kernels_that_spill_are_given_all_registers_of_a_multiprocessor() -> None:
    source = (
        'extern "C" __global__ void __launch_bounds__(256) a_kernel(int* x);\n'
        'extern "C" __global__ void __launch_bounds__(256) a_kernel(int* x) {}\n'
        'extern "C" __global__ void __launch_bounds__(64) a_kernel_1(int* x) {}\n'
    )
    assert with_all_registers(source, {"a_kernel"}) == (
        'extern "C" __global__ void __launch_bounds__(256, 1) a_kernel(int* x);\n'
        'extern "C" __global__ void __launch_bounds__(256, 1) a_kernel(int* x) {}\n'
        'extern "C" __global__ void __launch_bounds__(64) a_kernel_1(int* x) {}\n'
    )
    assert with_all_registers(source, set()) == source
