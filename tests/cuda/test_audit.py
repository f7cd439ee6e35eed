"""What the audit of device code finds and refuses, on made-up and on compiled kernels."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from ibert_tvm.targets import Gpu, TargetError
from ibert_tvm.targets.cuda.audit import (
    KernelAudit,
    KernelRole,
    check_kernels,
    check_memory,
    disassemble,
    program_kernel,
    read_kernels,
)
from ibert_tvm.targets.cuda.launches import Launch
from tests.cuda.tools import cuda_toolchain
from tests.examples import examples
from tests.snapshots import Messages

ROLES = {
    "dense": KernelRole("linear", "layer.0.dense", 512),
    "dense_kernel": KernelRole("gelu", "layer.0.gelu"),
}
DENSE = KernelAudit(
    "dense_kernel", "dense", "linear", "layer.0.dense", "sm_75", 100, 16, 0, 64, 2048, 0
)
GELU = KernelAudit(
    "dense_kernel_kernel", "dense_kernel", "gelu", "layer.0.gelu", "sm_75", 80, 0, 0, 30, 0, 0
)
HELPER = replace(DENSE, name="helper", kernel="", layer="", kind="", matrix=0)


def test_kernels_that_keep_their_promises_pass() -> None:
    check_kernels([DENSE, GELU], ROLES, "t4")
    # Elementwise kernels may use local memory; a helper of no kernel may be there.
    check_kernels([DENSE, replace(GELU, local=3, stack_bytes=16), HELPER], ROLES, "t4")
    # One of several device kernels does the products.
    check_kernels([DENSE, replace(DENSE, name="dense_kernel_1", matrix=0), GELU], ROLES, "t4")


_FLOATING = tuple(f"+0x{16 * i:04x} FADD R{i}, R1, R2" for i in range(5))
_NEWER = (replace(DENSE, architecture="sm_80", matrix=0), replace(GELU, architecture="sm_80"))
_UNKNOWN = replace(HELPER, unknown=("+0x0000 NEWOP R1",))


@pytest.mark.parametrize(
    "audits",
    [
        (DENSE, replace(GELU, floating=_FLOATING, unknown=("+0x0000 NEW R1",))),
        (DENSE, GELU, _UNKNOWN),
        (DENSE, GELU, *_NEWER),
        (DENSE, replace(DENSE, name="dense_kernel_1", local=2), GELU),
        (DENSE, replace(DENSE, name="dense_kernel_1", stack_bytes=8), GELU),
        (DENSE,),
    ],
    ids=["floating", "unknown", "no tensor cores", "local memory", "stack", "missing"],
)
def test_broken_promises_are_refused(audits: tuple[KernelAudit, ...], messages: Messages) -> None:
    with messages.raises(TargetError):
        check_kernels(audits, ROLES, "t4")


def test_shared_memory_has_a_limit(messages: Messages) -> None:
    gpu = Gpu(("sm_75",), 40, 64 << 10)
    launches = {"dense_kernel": Launch(dynamic_shared_bytes=62 << 10)}
    check_memory([DENSE, GELU], launches, gpu, "t4")
    launches = {"dense_kernel": Launch(dynamic_shared_bytes=(62 << 10) + 1)}
    with messages.raises(TargetError):
        check_memory([DENSE, GELU], launches, gpu, "t4")


@pytest.mark.parametrize(
    ("name", "kernel"),
    [
        ("dense_kernel", "dense"),
        ("dense_kernel_2", "dense"),
        ("dense_kernel_kernel", "dense_kernel"),
        ("dense", ""),
        ("other_kernel", ""),
        ("dense_kernel_x", ""),
    ],
)
def test_device_kernels_belong_to_kernels_of_the_program(name: str, kernel: str) -> None:
    assert program_kernel(name, ROLES) == kernel


SOURCE = Path(__file__).with_name("audited.cu")


@pytest.mark.representatives(1)
@pytest.mark.parametrize("architecture", examples(["sm_75", "sm_90", "sm_120"], "sm_75", "sm_120"))
def test_compiled_code_is_read_as_it_is(architecture: str, tmp_path: Path) -> None:
    toolchain = cuda_toolchain()
    image = tmp_path / "kernels.cubin"
    command = [toolchain.nvcc, f"-arch={architecture}", "-cubin", "-o", str(image), str(SOURCE)]
    subprocess.run(command, check=True)
    text = disassemble(image, toolchain)
    audits = {a.name: a for a in read_kernels(text, image.read_bytes(), architecture, ROLES)}
    dense, array = audits["dense_kernel"], audits["dense_kernel_kernel"]
    assert (dense.kernel, dense.kind, dense.layer) == ("dense", "linear", "layer.0.dense")
    assert dense.shared_bytes == 384
    assert {text.split()[1].partition(".")[0] for text in dense.floating} >= {"I2F", "MUFU", "F2I"}
    assert (dense.local, dense.stack_bytes, dense.matrix, dense.unknown) == (0, 0, 0, ())
    assert array.local >= 3 and array.stack_bytes == 256
    assert (array.kernel, array.unknown) == ("dense_kernel", ())
    # Nothing but moves of constants, which a build writes anew before it audits.
    assert [text for text in array.floating if "HFMA2 R0, -RZ, RZ, 0, 0" not in text] == []
    for audit in (dense, array):
        assert 8 <= audit.registers <= 64
        assert audit.instructions > 30
        assert audit.architecture == architecture


def test_what_is_no_image_cannot_be_disassembled(tmp_path: Path) -> None:
    toolchain = cuda_toolchain()
    path = tmp_path / "kernels.cubin"
    path.write_bytes(b"no image")
    with pytest.raises(TargetError) as caught:
        disassemble(path, toolchain)
    assert caught.value.what == "cannot disassemble the compiled kernels"
    assert caught.value.where == f"{toolchain.nvdisasm} -c kernels.cubin"
    assert "kernels.cubin" in caught.value.why
    assert caught.value.todo == "install an nvdisasm of the compiler's version, or a newer one"
