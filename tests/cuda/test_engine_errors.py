"""What users are told where a library cannot run on a GPU, word for word."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from ibert_tvm.common.errors import DeviceError, ExitCode, UsageError
from ibert_tvm.runtime import cuda_runtime, load_library
from ibert_tvm.targets.cuda.driver import runs_on
from tests.arm.tools import needs
from tests.cuda.gpu_library import TinyGpuModel
from tests.cuda.stand_in_gpu import environment, load
from tests.processes import run_captured
from tests.snapshots import Messages


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    needs("g++")
    load().become(75)
    return TinyGpuModel(shapes=((1, 8),)).build(tmp_path_factory.mktemp("gpu") / "model.so")


@pytest.mark.slow_cases(8)
@pytest.mark.representatives(1)
@pytest.mark.parametrize(
    ("arguments", "settings"),
    [
        ([], {"devices": 0}),
        ([], {"fail": "cudaGetDeviceCount:1:35"}),
        ([], {"fail": "cudaGetDeviceCount:1:999"}),
        (["--device", "cuda:2"], {}),
        ([], {"capability": 80}),
        ([], {"memory": 64}),
        ([], {"fail": "cudaMalloc:3:2"}),
        ([], {"fail": "cudaGraphInstantiate:1:901"}),
        ([], {"fail": "cudaStreamSynchronize:2:700"}),
    ],
    ids=[
        *("no GPU", "old driver", "driver that fails", "no such GPU", "another architecture"),
        *("no memory for weights", "no memory for values", "no graph", "GPU that fails"),
    ],
)
def test_a_gpu_that_cannot_be_used(
    path: Path, arguments: list[str], settings: dict[str, object], messages: Messages
) -> None:
    """What `ibert run` reports in a process that has a GPU with such settings."""
    command = [sys.executable, "-m", "ibert_tvm", "run", str(path), "--text", "hello", "--json"]
    done = run_captured([*command, *arguments], env=environment(**settings))
    assert done.stdout == ""
    error = json.loads(done.stderr[done.stderr.index("{") :])["error"]
    assert done.returncode == error["exit_code"] == ExitCode.TARGET
    assert error["kind"] == "DeviceError"
    messages.check("\n".join(f"{key}: {error[key]}" for key in ("what", "where", "why", "todo")))


def test_no_driver(path: Path, monkeypatch: pytest.MonkeyPatch, messages: Messages) -> None:
    monkeypatch.setattr(cuda_runtime, "_DRIVER", "libcuda-missing.so.1")
    with messages.raises(DeviceError):
        cuda_runtime.cuda_runtime.__wrapped__()


def test_no_cuda_runtime(monkeypatch: pytest.MonkeyPatch, messages: Messages) -> None:
    needs("g++")
    load()
    monkeypatch.setattr(cuda_runtime, "_RUNTIME", "libcudart-missing.so.13")
    with messages.raises(DeviceError):
        cuda_runtime.cuda_runtime.__wrapped__()


@pytest.mark.parametrize("wanted", ["cpu", "gpu:0"])
def test_devices_that_cannot_be(path: Path, wanted: str, messages: Messages) -> None:
    with messages.raises(UsageError):
        load_library(path, device=wanted)


def test_threads_mean_nothing_on_a_gpu(path: Path, messages: Messages) -> None:
    with messages.raises(UsageError):
        load_library(path, num_threads=2)


@pytest.mark.parametrize(
    ("architectures", "capability", "runs"),
    [
        (("sm_75",), (7, 5), True),
        (("sm_75",), (8, 0), False),
        (("sm_75",), (7, 0), False),
        (("sm_80",), (8, 6), True),
        (("sm_86",), (8, 0), False),
        (("sm_90",), (10, 0), False),
        (("sm_90a",), (9, 0), True),
        (("sm_100a",), (10, 3), False),
        (("sm_75", "sm_80"), (8, 9), True),
        (("sm_75", "compute_75"), (9, 0), True),
        (("sm_80", "compute_80"), (7, 5), False),
        ((), (7, 5), False),
    ],
)
def test_which_code_runs_where(
    architectures: tuple[str, ...], capability: tuple[int, int], runs: bool
) -> None:
    assert runs_on(architectures, capability) is runs


def test_after_an_illegal_access_the_process_still_ends_in_order(path: Path) -> None:
    script = (
        "import sys, ibert_tvm\n"
        "library = ibert_tvm.load_library(sys.argv[1])\n"
        "library.run([[4, 5, 6]])\n"
        "program = library.engine._program\n"
        "program.cuda.free(program.parameters[0]._block.address)\n"
        "try:\n"
        "    library.run([[4, 5, 6]])\n"
        "except ibert_tvm.common.errors.DeviceError as error:\n"
        "    print(error.why)\n"
    )
    done = run_captured([sys.executable, "-c", script, str(path)], env=environment())
    why = "an illegal memory access was encountered (cudaErrorIllegalAddress, 700)\n"
    assert (done.returncode, done.stdout) == (0, why), done.stderr
