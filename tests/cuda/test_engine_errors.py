"""What users are told where a library cannot run on a GPU, word for word."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ibert_tvm.common.errors import DeviceError, ExitCode, UsageError
from ibert_tvm.runtime import cuda_runtime, load_library
from ibert_tvm.targets.cuda.driver import runs_on
from tests.cuda.gpu_library import TinyGpuModel
from tests.cuda.stand_in_gpu import environment, load
from tests.cuda.tools import needs


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    needs("g++")
    load().become(75)
    return TinyGpuModel(shapes=((1, 8),)).build(tmp_path_factory.mktemp("gpu") / "model.so")


def _error(path: Path, *arguments: str, **settings: object) -> dict[str, object]:
    """What `ibert run` reports in a process that has a GPU with such settings."""
    command = [sys.executable, "-m", "ibert_tvm", "run", str(path), "--text", "hello", "--json"]
    done = subprocess.run(
        [*command, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=environment(**settings),
    )
    assert done.stdout == ""
    error = json.loads(done.stderr[done.stderr.index("{") :])["error"]
    assert done.returncode == error["exit_code"] == ExitCode.TARGET
    assert error["kind"] == "DeviceError"
    return {key: error[key] for key in ("what", "where", "why", "todo")}


def test_no_gpu(path: Path) -> None:
    assert _error(path, devices=0) == {
        "what": "there is no NVIDIA GPU on this machine",
        "where": "",
        "why": "the driver is installed and finds no device (or CUDA_VISIBLE_DEVICES hides it)",
        "todo": "see what nvidia-smi lists; run on a machine with a GPU, or compile for a "
        "processor (--target host)",
    }


@pytest.mark.slow
def test_old_driver(path: Path) -> None:
    assert _error(path, fail="cudaGetDeviceCount:1:35") == {
        "what": "the NVIDIA driver of this machine is too old",
        "where": "",
        "why": "it serves CUDA 13.0, and TVM's runtime is made for CUDA 13",
        "todo": "install a driver of series 580 or later, or compile for a processor "
        "(--target host)",
    }


@pytest.mark.slow
def test_driver_that_fails(path: Path) -> None:
    assert _error(path, fail="cudaGetDeviceCount:1:999") == {
        "what": "the NVIDIA driver of this machine cannot be used",
        "where": "",
        "why": "unknown error (cudaErrorUnknown, 999)",
        "todo": "see whether nvidia-smi works, or compile for a processor (--target host)",
    }


@pytest.mark.slow
def test_no_such_gpu(path: Path) -> None:
    assert _error(path, "--device", "cuda:2") == {
        "what": "there is no GPU cuda:2",
        "where": "--device",
        "why": "this machine has cuda:0",
        "todo": "give one of: cuda:0",
    }


@pytest.mark.slow
def test_another_architecture(path: Path) -> None:
    assert _error(path, capability=80) == {
        "what": f"the library {path} does not run on the GPU cuda:0",
        "where": "",
        "why": "it has code for sm_75, and Stand-in A100 is sm_80",
        "todo": "compile with --target cuda:sm_80",
    }


@pytest.mark.slow
def test_no_memory_for_the_weights(path: Path) -> None:
    assert _error(path, memory=64) == {
        "what": "the memory of the GPU cuda:0 is full",
        "where": "",
        "why": "there is no place for the weights of 0.0 MB: 0.0 MB of 0.0 MB are free",
        "todo": "end other programs that use it (nvidia-smi lists them), compile for smaller "
        "batches, or choose another GPU",
    }


@pytest.mark.slow
def test_no_memory_for_the_values(path: Path) -> None:
    error = _error(path, fail="cudaMalloc:3:2")
    assert str(error["why"]).startswith("there is no place for the values of a batch of 1 x 8")
    assert error["what"] == "the memory of the GPU cuda:0 is full"


def test_a_gpu_that_fails(path: Path) -> None:
    assert _error(path, fail="cudaStreamSynchronize:2:700") == {
        "what": "the GPU reports an error",
        "where": "cudaStreamSynchronize",
        "why": "an illegal memory access was encountered (cudaErrorIllegalAddress, 700)",
        "todo": "run it again in a new process, since CUDA can be unusable after an error; "
        "nvidia-smi shows the state of the GPU",
    }


@pytest.mark.slow
def test_a_graph_that_cannot_be_made(path: Path) -> None:
    error = _error(path, fail="cudaGraphInstantiate:1:901")
    assert (error["what"], error["where"]) == ("the GPU reports an error", "cudaGraphInstantiate")


def test_no_driver(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_runtime, "_DRIVER", "libcuda-missing.so.1")
    with pytest.raises(DeviceError) as caught:
        cuda_runtime.cuda_runtime.__wrapped__()
    assert str(caught.value) == (
        "there is no NVIDIA driver on this machine\n"
        "  why: libcuda-missing.so.1: cannot open shared object file: No such file or directory\n"
        "  what to do: install the driver of the GPU, series 580 or later; run on a machine that "
        "has one; or compile for a processor (--target host)"
    )


def test_no_cuda_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    needs("g++")
    load()
    monkeypatch.setattr(cuda_runtime, "_RUNTIME", "libcudart-missing.so.13")
    with pytest.raises(DeviceError) as caught:
        cuda_runtime.cuda_runtime.__wrapped__()
    assert str(caught.value) == (
        "the CUDA runtime is not installed\n"
        "  where: libcudart-missing.so.13\n"
        "  why: libcudart-missing.so.13: cannot open shared object file: No such file or "
        "directory\n"
        "  what to do: pip install 'ibert-tvm[cuda]', or install NVIDIA's CUDA 13"
    )


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (
            "cpu",
            "the library {path} cannot run on cpu\n"
            "  where: --device\n"
            "  why: it was compiled for t4: its kernels run on an NVIDIA GPU\n"
            "  what to do: leave --device out, or compile with --target host",
        ),
        (
            "gpu:0",
            "unknown device 'gpu:0'\n"
            "  where: --device\n"
            "  what to do: give cpu, cuda (the first GPU) or cuda:N, for example cuda:1",
        ),
    ],
)
def test_devices_that_cannot_be(path: Path, wanted: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_library(path, device=wanted)
    assert str(caught.value) == message.format(path=path)


def test_threads_mean_nothing_on_a_gpu(path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        load_library(path, num_threads=2)
    assert str(caught.value) == (
        f"a number of threads was given for the library {path}\n"
        "  why: its kernels run on a GPU, and a call waits for them in one thread\n"
        "  what to do: leave the number of threads out"
    )


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
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)],
        capture_output=True,
        text=True,
        check=False,
        env=environment(),
    )
    why = "an illegal memory access was encountered (cudaErrorIllegalAddress, 700)\n"
    assert (done.returncode, done.stdout) == (0, why), done.stderr
