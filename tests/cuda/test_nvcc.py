"""Compiling for several architectures: images, errors, and what is left behind."""

from __future__ import annotations

import contextlib
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest

from ibert_tvm.targets import Gpu, TargetError
from ibert_tvm.targets.cuda.compile import DEVICE_CODE
from ibert_tvm.targets.cuda.nvcc import compile_images
from tests.cuda.tools import cuda_toolchain
from tests.examples import examples
from tests.processes import PATIENCE, run_captured
from tests.snapshots import Messages

SOURCE = """
extern "C" __global__ void add(const int* a, int* b) { b[threadIdx.x] += a[threadIdx.x]; }
"""
T4 = Gpu(("sm_75",), 40, 1)


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files go, so that a test sees all of them."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.mark.slow
def test_one_image_holds_the_code_of_every_architecture(temporary: Path) -> None:
    toolchain = cuda_toolchain()
    gpu = Gpu(("sm_75", "sm_80"), 40, 1, ptx=True)
    with compile_images(SOURCE, gpu, toolchain, DEVICE_CODE, "mine") as images:
        assert list(images.cubins) == ["sm_75", "sm_80"]
        assert all(path.read_bytes()[:4] == b"\x7fELF" for path in images.cubins.values())
        (ptx,) = images.ptx.values()
        assert ".target sm_80" in ptx.read_text(encoding="utf-8")
        image = images.joined()
        without = replace(images, ptx={}).joined()
    # A fat binary begins with its magic number, 0xba55ed50 (fatbinary_section.h).
    assert image[:4] == without[:4] == b"\x50\xed\x55\xba"
    assert len(without) < len(image)
    assert list(temporary.iterdir()) == []


def test_an_error_names_the_source_that_is_kept(temporary: Path) -> None:
    toolchain = cuda_toolchain()
    source = SOURCE + "".join(f"int f{i}() {{ return missing{i}; }}\n" for i in range(6))
    with (
        pytest.raises(TargetError) as caught,
        compile_images(source, T4, toolchain, DEVICE_CODE, "t4"),
    ):
        pass
    (kept,) = temporary.iterdir()
    assert kept.read_text(encoding="utf-8") == source
    error = caught.value
    assert (error.what, error.where) == (
        "nvcc cannot compile the kernels for sm_75",
        f"target 't4'; the source is kept in {kept}",
    )
    assert error.why == (
        'kernels.cu(3): error: identifier "missing0" is undefined; '
        'kernels.cu(4): error: identifier "missing1" is undefined; '
        'kernels.cu(5): error: identifier "missing2" is undefined; '
        'kernels.cu(6): error: identifier "missing3" is undefined; ... and 2 more'
    )
    assert error.todo == (
        "this is a defect of ibert_tvm, or of the CUDA installation "
        f"({toolchain.nvcc}): see `ibert doctor`"
    )


SLOW = """#!/bin/sh
echo $$ >> "{log}"
sh -c 'echo $$ >> "{log}"; sleep 60'
"""


def _alive(log: Path) -> list[int]:
    """Processes that run; what has ended and was not collected yet does not."""
    alive = []
    for line in log.read_text(encoding="utf-8").split():
        stat = Path("/proc", line, "stat")
        with contextlib.suppress(OSError):
            if stat.read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z":
                alive.append(int(line))
    return alive


def test_an_interrupt_ends_every_process(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, nvcc = tmp_path / "log", tmp_path / "nvcc"
    nvcc.write_text(SLOW.format(log=log), encoding="utf-8")
    nvcc.chmod(0o755)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    toolchain = replace(cuda_toolchain(), nvcc=str(nvcc))
    gpu = Gpu(("sm_75", "sm_80", "sm_90"), 40, 1)

    deadline = time.monotonic() + PATIENCE
    real_sleep = time.sleep

    def sleep(seconds: float) -> None:
        """What waits for the compilers is interrupted once all of them run."""
        if log.exists() and len(log.read_text(encoding="utf-8").split()) == 4:
            raise KeyboardInterrupt
        assert time.monotonic() < deadline
        real_sleep(seconds)

    with monkeypatch.context() as patch:
        patch.setattr("ibert_tvm.targets.cuda.nvcc.time.sleep", sleep)
        with (
            pytest.raises(KeyboardInterrupt),
            compile_images(SOURCE, gpu, toolchain, DEVICE_CODE, "mine"),
        ):
            pass
    # Two compilers at a time, each with a process of its own, and no third.
    assert len(log.read_text(encoding="utf-8").split()) == 4
    deadline = time.monotonic() + PATIENCE
    while _alive(log) and time.monotonic() < deadline:
        time.sleep(0.02)  # until whoever inherited them has collected them
    assert _alive(log) == []
    assert list(temporary.iterdir()) == []


def test_a_fat_binary_that_cannot_be_made_is_an_error(tmp_path: Path, messages: Messages) -> None:
    fatbinary = tmp_path / "fatbinary"
    fatbinary.write_text("#!/bin/sh\necho 'no space' >&2\nexit 1\n", encoding="utf-8")
    fatbinary.chmod(0o755)
    toolchain = replace(cuda_toolchain(), fatbinary=str(fatbinary))
    with (
        compile_images(SOURCE, T4, toolchain, DEVICE_CODE, "t4") as images,
        messages.raises(TargetError),
    ):
        images.joined()


def test_without_space_for_the_source_the_error_says_where(
    temporary: Path, messages: Messages
) -> None:
    toolchain = cuda_toolchain()
    temporary.rmdir()
    with messages.raises(TargetError), compile_images(SOURCE, T4, toolchain, DEVICE_CODE, "t4"):
        pass


@pytest.mark.parametrize("architecture", examples(["sm_75", "sm_80", "sm_90"], "sm_75"))
@pytest.mark.slow
def test_all_device_headers_compile_by_themselves(architecture: str, tmp_path: Path) -> None:
    toolchain = cuda_toolchain()
    for header in sorted(DEVICE_CODE.glob("*.cuh")):
        source = tmp_path / f"{header.stem}.cu"
        source.write_text(f'#include "{header.name}"\n', encoding="utf-8")
        command = [toolchain.nvcc, "-std=c++17", f"-arch={architecture}", "-cubin"]
        command += ["-I", str(DEVICE_CODE), "-o", str(tmp_path / "image"), str(source)]
        done = run_captured(command)
        assert (done.returncode, done.stdout + done.stderr) == (0, ""), header.name
