"""GPUs by name, by architecture, several at once; and what is missing to compile for them."""

from __future__ import annotations

import ctypes
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from ibert_tvm.targets import Gpu, TargetError, check_runtime, get_target, list_targets
from ibert_tvm.targets.cuda import driver, toolchain
from ibert_tvm.targets.cuda.descriptions import GPUS
from ibert_tvm.targets.toolchain import compiler_variable
from tests.snapshots import Messages

INSTALL = (
    "pip install 'ibert-tvm[cuda]' (which needs neither a GPU nor root), or install CUDA 13 and "
    "set CUDA_HOME to its folder"
)


@pytest.mark.parametrize(
    ("name", "architectures", "multiprocessors", "kilobytes", "ptx"),
    [
        ("t4", ("sm_75",), 40, 64, False),
        ("a100", ("sm_80",), 108, 163, False),
        ("h100", ("sm_90",), 132, 227, False),
        ("h200", ("sm_90",), 132, 227, False),
        ("cuda:sm_86", ("sm_86",), 72, 99, False),
        ("cuda:sm_90+sm_75+sm_80", ("sm_75", "sm_80", "sm_90"), 40, 64, False),
        ("t4+a100", ("sm_75", "sm_80"), 40, 64, False),
        ("cuda:sm_89+sm_120+ptx", ("sm_89", "sm_120"), 58, 99, True),
        ("a100+ptx", ("sm_80",), 108, 163, True),
    ],
)
def test_names_of_gpus(
    name: str, architectures: tuple[str, ...], multiprocessors: int, kilobytes: int, ptx: bool
) -> None:
    target = get_target(name)
    assert target.name == name
    assert target.gpu == Gpu(architectures, multiprocessors, kilobytes << 10, ptx)
    assert target.tvm_target["kind"] == "cuda"
    assert target.tvm_target["arch"] == architectures[0]
    assert target.elf_machine == "EM_X86_64"
    assert "ssse3" in target.required_features and "avx" not in target.required_features


@pytest.mark.parametrize("name", ["cuda:sm_87", "cuda:sm_75+sm_110", "cuda:sm_90/aarch64"])
def test_gpus_beside_another_processor(name: str) -> None:
    target = get_target(name)
    assert target.elf_machine == "EM_AARCH64"
    assert target.required_features == ("asimd",)
    assert target.toolchain is not None and target.toolchain.compiler == "aarch64-linux-gnu-gcc"
    assert target.description.endswith(", driven by aarch64")
    assert get_target("cuda:sm_87/x86-64").elf_machine == "EM_X86_64"


@pytest.mark.parametrize(
    "name",
    [
        "cuda:sm_70",
        "cuda:sm_90a",
        "cuda:75",
        "cuda:",
        "t4+v100",
        "cuda:ptx",
        "cuda:sm_80/riscv64",
        "cuda:sm_80/",
    ],
)
def test_what_is_no_gpu(name: str, messages: Messages) -> None:
    with messages.raises(TargetError):
        get_target(name)


def test_a_gpu_has_tvms_runtime_by_default() -> None:
    assert check_runtime(get_target("t4"), None) == "tvm"
    assert check_runtime(get_target("t4"), "none") == "none"


def test_the_variable_of_a_target_is_one_that_a_shell_takes() -> None:
    assert compiler_variable(get_target("cuda:sm_75+sm_80")) == "IBERT_CC_CUDA_SM_75_SM_80"


# -- the toolchain --------------------------------------------------------------------------------


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without CUDA: no package, no variable, no installation."""
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path / "packages"))
    monkeypatch.setattr(toolchain, "_INSTALLED", tmp_path / "usr" / "cuda")
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    for variable in ("IBERT_CUDA_HOME", "CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(variable, raising=False)
    return tmp_path


def install(folder: Path, *programs: str, version: str = "13.0") -> Path:
    """Programs that answer as NVIDIA's do."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in programs or ("nvcc", "fatbinary", "nvdisasm"):
        script = (
            f'#!/bin/sh\n[ "$1" = --version ] && echo "Cuda, release {version}, V{version}.1"\n'
        )
        script += '[ "$1" = --list-gpu-code ] && printf "sm_90\\nsm_75\\nsm_90a\\n"\nexit 0\n'
        (folder / name).write_text(script, encoding="utf-8")
        (folder / name).chmod(0o755)
    return folder


def test_without_a_compiler_the_error_says_what_to_install(
    nowhere: Path, messages: Messages
) -> None:
    with messages.raises(TargetError):
        toolchain.find_cuda_toolchain("t4")


def test_places_are_tried_in_order(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def found() -> tuple[str, str]:
        tools = toolchain.find_cuda_toolchain()
        return tools.found, str(Path(tools.nvcc).parent.relative_to(nowhere))

    install(nowhere / "usr" / "cuda" / "bin")
    assert found() == (str(nowhere / "usr" / "cuda"), "usr/cuda/bin")
    install(nowhere / "path")
    assert found() == ("PATH", "path")
    install(nowhere / "old" / "bin")
    monkeypatch.setenv("CUDA_PATH", str(nowhere / "old"))
    assert found() == ("CUDA_PATH", "old/bin")
    install(nowhere / "home" / "bin")
    monkeypatch.setenv("CUDA_HOME", str(nowhere / "home"))
    assert found() == ("CUDA_HOME", "home/bin")
    install(nowhere / "packages" / "nvidia" / "cu13" / "bin")
    assert found() == ("Python packages", "packages/nvidia/cu13/bin")
    install(nowhere / "mine" / "bin")
    monkeypatch.setenv("IBERT_CUDA_HOME", str(nowhere / "mine"))
    assert found() == ("IBERT_CUDA_HOME", "mine/bin")


def test_a_chosen_folder_must_have_a_compiler(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    install(nowhere / "path")
    monkeypatch.setenv("IBERT_CUDA_HOME", "/nowhere")
    with messages.raises(TargetError):
        toolchain.find_cuda_toolchain("a100")


def test_an_old_compiler_is_refused(nowhere: Path, messages: Messages) -> None:
    install(nowhere / "path", version="11.8")
    with messages.raises(TargetError):
        toolchain.find_cuda_toolchain("t4")


def test_a_missing_disassembler_is_said_before_anything_is_compiled(
    nowhere: Path, messages: Messages
) -> None:
    install(nowhere / "path", "nvcc", "fatbinary")
    with messages.raises(TargetError):
        toolchain.find_cuda_toolchain("t4")
    other = install(nowhere / "usr" / "cuda" / "bin", "nvdisasm")
    assert toolchain.find_cuda_toolchain("t4").nvdisasm == str(other / "nvdisasm")


def test_what_is_no_compiler_does_not_work(nowhere: Path, messages: Messages) -> None:
    folder = install(nowhere / "path")
    (folder / "nvcc").write_text("#!/bin/sh\necho broken\n", encoding="utf-8")
    with messages.raises(TargetError):
        toolchain.find_cuda_toolchain("t4")


def test_architectures_that_the_compiler_does_not_know_are_refused(
    nowhere: Path, messages: Messages
) -> None:
    install(nowhere / "path")
    tools = toolchain.find_cuda_toolchain("t4")
    assert tools.architectures == (75, 90)
    toolchain.check_architectures(tools, ("sm_75", "sm_90"), "cuda:sm_75+sm_90")
    with messages.raises(TargetError):
        toolchain.check_architectures(tools, ("sm_75", "sm_80", "sm_120"), "mine")


# -- the driver -----------------------------------------------------------------------------------


class FakeDriver:
    """libcuda.so.1 as far as it is asked here."""

    def __init__(self, *gpus: tuple[bytes, int, int], version: int = 13010, error: int = 0) -> None:
        self.gpus, self.version, self.error = gpus, version, error

    def cuInit(self, _flags: Any) -> int:
        return self.error

    def cuDriverGetVersion(self, value: Any) -> int:
        value._obj.value = self.version
        return 0

    def cuDeviceGetCount(self, value: Any) -> int:
        value._obj.value = len(self.gpus)
        return 0

    def cuDeviceGet(self, value: Any, index: int) -> int:
        value._obj.value = index
        return 0

    def cuDeviceGetName(self, name: Any, _size: int, device: Any) -> int:
        name.value = self.gpus[device.value][0]
        return 0

    def cuDeviceGetAttribute(self, value: Any, which: int, device: Any) -> int:
        value._obj.value = (*self.gpus[device.value], 40)[{75: 1, 76: 2, 16: 3}[which]]
        return 0


def use(monkeypatch: pytest.MonkeyPatch, library: Any) -> None:
    def load(name: str, *_: Any, **__: Any) -> Any:
        assert name == "libcuda.so.1"
        if isinstance(library, Exception):
            raise library
        return library

    monkeypatch.setattr(ctypes, "CDLL", load)


def test_the_driver_lists_its_gpus(monkeypatch: pytest.MonkeyPatch, messages: Messages) -> None:
    use(monkeypatch, FakeDriver((b"Tesla T4", 7, 5), (b"NVIDIA A10", 8, 6)))
    found = driver.find_driver()
    assert (found.cuda, [*map(str, found.gpus)]) == (
        (13, 1),
        ["Tesla T4 (sm_75)", "NVIDIA A10 (sm_86)"],
    )
    assert driver.find_gpu(Gpu(("sm_80",), 1, 1)) == "NVIDIA A10 (sm_86)"
    assert driver.find_gpu(Gpu(("sm_75",), 1, 1, ptx=True)) == "Tesla T4 (sm_75)"
    with messages.raises(TargetError):
        driver.find_gpu(Gpu(("sm_89", "sm_90"), 1, 1, ptx=True))


@pytest.mark.parametrize(
    "library", [OSError("not found"), FakeDriver(), FakeDriver(error=100), object()]
)
def test_without_a_gpu_the_reason_is_said(
    library: Any, monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    use(monkeypatch, library)
    with messages.raises(TargetError):
        driver.find_driver()


# -- the list -------------------------------------------------------------------------------------


def test_the_list_says_what_a_gpu_lacks_here(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "ibert_tvm.targets.toolchain.find_linker", lambda description: ("/usr/bin/cc",)
    )
    use(monkeypatch, OSError("not found"))
    rows = {row.name: row for row in list_targets()}
    for gpu in GPUS:
        row = rows[gpu.name]
        assert (row.available, row.runtimes, row.runs) == (False, ("tvm", "none"), "")
        assert row.missing == (
            f"the kernels of a GPU are compiled by nvcc, which is in none of them; {INSTALL}"
        )
        assert row.runs_missing == (
            "there is no driver (libcuda.so.1); install NVIDIA's driver, 580 or newer"
        )
    folder = install(nowhere / "path")
    use(monkeypatch, FakeDriver((b"Tesla T4", 7, 5)))
    rows = {row.name: row for row in list_targets()}
    assert (rows["t4"].available, rows["t4"].compiler, rows["t4"].runs) == (
        True,
        f"{folder / 'nvcc'}, /usr/bin/cc",
        "Tesla T4 (sm_75)",
    )
    assert (rows["a100"].available, rows["a100"].missing) == (
        False,
        "nvcc 13.0 does not know it; use one of: sm_75, sm_90; or another version of CUDA",
    )
    assert rows["h100"].runs_missing == "it has Tesla T4 (sm_75); compile for that one"
