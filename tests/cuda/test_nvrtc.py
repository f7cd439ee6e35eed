"""CUDA 12's compiler as a library: which one is taken, what it is asked for, and its errors."""

from __future__ import annotations

import subprocess
import sysconfig
from pathlib import Path

import pytest

from ibert_tvm.targets import Gpu, TargetError
from ibert_tvm.targets.cuda import toolchain as toolchains
from ibert_tvm.targets.cuda.audit import disassemble
from ibert_tvm.targets.cuda.compile import DEVICE_CODE
from ibert_tvm.targets.cuda.driver import NeededDriver
from ibert_tvm.targets.cuda.library import entries
from ibert_tvm.targets.cuda.nvcc import compile_images
from tests.arm.tools import needs
from tests.cuda.test_gpu_targets import install
from tests.cuda.test_nvcc import SOURCE

GPU = Gpu(("sm_75", "sm_80"), 40, 1, ptx=True)


@pytest.fixture
def packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Packages of CUDA 12 that a stand-in is in, and of CUDA 13, whose nvcc knows another GPU."""
    needs("gcc")
    source = Path(__file__).with_name("nvrtc_stand_in.c")
    for path in (tmp_path / library for library in toolchains._LIBRARIES.values()):
        path.parent.mkdir(parents=True)
        command = ["gcc", "-shared", "-fPIC", "-w", str(source), "-o", str(path)]
        subprocess.run(command, check=True, timeout=60)
    install(tmp_path / toolchains._PACKAGES / "bin")
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.delenv(toolchains.CUDA_VARIABLE, raising=False)
    return tmp_path


def test_code_is_compiled_and_joined_by_libraries(packages: Path) -> None:
    found = toolchains.find_cuda_toolchain("t4", GPU.architectures)
    assert found.title == "NVRTC 12.9"
    assert found.nvdisasm == str(packages / "nvidia" / "cu13" / "bin" / "nvdisasm")
    assert str(NeededDriver.of(found.version)) == "a driver of series 525 or later (CUDA 12.0)"
    with compile_images(SOURCE, GPU, found, DEVICE_CODE, "mine") as images:
        options = f"-std=c++17 -arch=sm_75 -I{DEVICE_CODE} -w "
        assert images.cubins["sm_75"].read_bytes() == options.encode() + b"\0"
        (ptx,) = images.ptx.values()
        assert ptx.read_text("utf-8") == f"-std=c++17 -arch=compute_80 -I{DEVICE_CODE} -w "
        joined = images.joined().decode()
    assert joined.startswith(f"[elf 75: {options}][elf 80: ")
    assert "[ptx 80: -std=c++17 -arch=compute_80" in joined


def test_what_it_does_not_know_the_next_compiler_compiles(packages: Path) -> None:
    found = toolchains.find_cuda_toolchain("h100", ("sm_75", "sm_90"))
    assert found.title == "nvcc 13.0"
    assert str(NeededDriver.of(found.version)) == "a driver of series 580 or later (CUDA 13.0)"
    assert str(NeededDriver.of((14, 1))) == "a driver that is newer (CUDA 14.0)"


def test_its_complaints_are_shown(packages: Path) -> None:
    found = toolchains.find_cuda_toolchain("t4", ("sm_75",))
    gpu = Gpu(("sm_75",), 40, 1)
    with (
        pytest.raises(TargetError) as caught,
        compile_images("missing", gpu, found, DEVICE_CODE, "t4"),
    ):
        pass
    Path(caught.value.where.partition("kept in ")[2]).unlink()
    assert caught.value.why == 'kernels.cu(1): error: identifier "missing" is undefined'


# Where they are installed they compile for all other tests too, so that CI has those of CUDA 13.
@pytest.mark.record
def test_the_real_libraries_make_what_the_disassembler_reads(tmp_path: Path) -> None:
    found = toolchains.find_cuda_toolchain("t4", GPU.architectures)
    if not found.title.startswith("NVRTC"):
        pytest.skip("no NVRTC of CUDA 12: pip install 'ibert-tvm[cuda12]'")
    with compile_images(SOURCE, GPU, found, DEVICE_CODE, "mine") as images:
        texts = [disassemble(path, found) for path in images.cubins.values()]
        image = images.joined()
    assert all("IADD" in text for text in texts)
    assert [(one.is_ptx, one.number) for one in entries(image)] == [
        (False, 75),
        (False, 80),
        (True, 80),
    ]
