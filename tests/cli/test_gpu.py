"""Commands on a library of a GPU, which a stand-in is here."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.cuda.gpu_library import TinyGpuModel
from tests.cuda.stand_in_gpu import load
from tests.cuda.tools import needs
from tests.report.pages import Page, resolve, says

from .conftest import Outcome

_QUICK = ("--seconds", "0.02")


@pytest.fixture(scope="module")
def gpu_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    needs("g++")
    load().become(75)
    shapes = ((1, 8), (4, 8))
    return TinyGpuModel(shapes=shapes).build(tmp_path_factory.mktemp("cli") / "gpu.so")


@pytest.mark.representatives(1)
@pytest.mark.parametrize("options", [(), ("--device", "cuda"), ("--device", "cuda:0")])
def test_run(
    ibert: Callable[..., Outcome], library: Path, gpu_library: Path, options: tuple[str, ...]
) -> None:
    words = ("--text", "hello world", "--text", "big", "--integers", "--json")
    outcome = ibert("run", gpu_library, *words, *options)
    assert (outcome.code, outcome.stderr) == (0, "")
    assert outcome.document["device"] == "cuda:0"
    on_processor = ibert("run", library, *words, "--device", "cpu").document
    assert on_processor["device"] == "cpu"
    assert outcome.document["outputs"] == on_processor["outputs"]


@pytest.mark.slow
def test_bench(ibert: Callable[..., Outcome], gpu_library: Path) -> None:
    outcome = ibert("bench", gpu_library, *_QUICK, "--per-layer", "--json")
    assert (outcome.code, outcome.stderr) == (0, "")
    document = outcome.document
    assert (document["target"], document["ceilings"]) == ("t4", {})
    machine = {k: document["machine"][k] for k in ("device", "gpu", "architecture")}
    assert machine == {"device": "cuda:0", "gpu": "Stand-in T4", "architecture": "sm_75"}
    assert document["machine"]["multiprocessors"] == 40
    assert [(r["batch"], r["seq_len"]) for r in document["results"]] == [(1, 8), (4, 8)]
    for result in document["results"]:
        assert result["threads"] is None
        assert 0 < result["min_ms"] <= result["median_ms"] <= result["p90_ms"]
        assert result["gpu_ms"] > 0
        rows = result["batch"]
        assert math.isclose(result["sequences_per_second"], rows / result["median_ms"] * 1e3)
        kernels = result["layers"]["kernels"]
        assert [part["layer"] for part in kernels] == ["layer.0", "layer.1", "layer.2", ""]
        assert kernels[-1]["name"] == "outside of kernels"
        assert all(part["ms"] > 0 for part in kernels[:-1])
        assert math.isclose(sum(part["share"] for part in kernels), 1.0)


@pytest.mark.slow
def test_bench_for_people(ibert: Callable[..., Outcome], gpu_library: Path) -> None:
    outcome = ibert("bench", gpu_library, *_QUICK, "--batch", "4", "--per-layer")
    assert outcome.code == 0
    first, header = outcome.stdout.splitlines()[:2]
    assert first == (
        f"{gpu_library} for t4, on cuda:0: Stand-in T4, sm_75, 40 multiprocessors; full rows"
    )
    assert "GPU ms" in header and "threads" not in header and "ceiling" not in header
    assert "ceiling of" not in outcome.stdout
    assert "\n4x8, by kind of kernel\n" in outcome.stdout


def test_inspect(ibert: Callable[..., Outcome], library: Path, gpu_library: Path) -> None:
    document = ibert("inspect", gpu_library, "--json").document
    assert (document["device"], document["architectures"]) == ("cuda", ["sm_75"])
    lines = [line.split() for line in ibert("inspect", gpu_library).stdout.splitlines()]
    assert ["runs", "on", "an", "NVIDIA", "GPU", "with", "code", "for", "sm_75"] in lines
    document = ibert("inspect", library, "--json").document
    assert (document["device"], document["architectures"]) == ("cpu", [])
    lines = [line.split() for line in ibert("inspect", library).stdout.splitlines()]
    assert ["runs", "on", "the", "processor"] in lines


def _refused(outcome: Outcome, code: int, message: str) -> None:
    assert (outcome.code, outcome.stdout) == (code, "")
    assert outcome.stderr == f"error: {message}\n"


def test_a_gpu_for_a_library_of_the_processor(ibert: Callable[..., Outcome], library: Path) -> None:
    for command in (("run", library, "--text", "hello"), ("bench", library, *_QUICK)):
        _refused(
            ibert(*command, "--device", "cuda"),
            2,
            f"the library {library} cannot run on cuda:0\n"
            "  where: --device\n"
            "  why: it was compiled for host: its kernels run on the processor\n"
            "  what to do: leave --device out, or compile with --target t4 (or another GPU)",
        )


def test_the_processor_for_a_library_of_a_gpu(
    ibert: Callable[..., Outcome], gpu_library: Path
) -> None:
    for command in (("run", gpu_library, "--text", "hello"), ("bench", gpu_library, *_QUICK)):
        _refused(
            ibert(*command, "--device", "cpu"),
            2,
            f"the library {gpu_library} cannot run on cpu\n"
            "  where: --device\n"
            "  why: it was compiled for t4: its kernels run on an NVIDIA GPU\n"
            "  what to do: leave --device out, or compile with --target host",
        )


def test_another_architecture(ibert: Callable[..., Outcome], gpu_library: Path) -> None:
    gpu = load()
    gpu.become(90)
    try:
        outcome = ibert("run", gpu_library, "--text", "hello")
    finally:
        gpu.become(75)
    _refused(
        outcome,
        4,
        f"the library {gpu_library} does not run on the GPU cuda:0\n"
        "  why: it has code for sm_75, and Stand-in H100 is sm_90\n"
        "  what to do: compile with --target cuda:sm_90",
    )


@pytest.mark.slow
def test_threads_mean_nothing(ibert: Callable[..., Outcome], gpu_library: Path) -> None:
    for command in (("run", gpu_library, "--text", "hello"), ("bench", gpu_library, *_QUICK)):
        _refused(
            ibert(*command, "--threads", "2"),
            2,
            f"a number of threads was given for the library {gpu_library}\n"
            "  why: its kernels run on a GPU, and a call waits for them in one thread\n"
            "  what to do: leave the number of threads out",
        )


@pytest.mark.slow
def test_unknown_devices(ibert: Callable[..., Outcome], gpu_library: Path, tmp_path: Path) -> None:
    commands = (
        ("run", gpu_library, "--text", "hello"),
        ("bench", gpu_library),
        ("eval", gpu_library, "--against", tmp_path),
    )
    for command in commands:
        for device in ("gpu", "cuda:", "cuda:-1", "cuda:x", "CUDA", ""):
            _refused(
                ibert(*command, "--device", device),
                2,
                f"unknown device {device!r}\n"
                "  where: --device\n"
                "  what to do: give cpu, cuda (the first GPU) or cuda:N, for example cuda:1",
            )


@pytest.mark.slow
def test_a_device_of_this_machine_or_a_board(
    ibert: Callable[..., Outcome], gpu_library: Path
) -> None:
    for command in (("run", gpu_library, "--text", "hello"), ("bench", gpu_library)):
        _refused(
            ibert(*command, "--device", "cuda", "--rpc", "board:9090"),
            2,
            "both --device and --rpc were given\n"
            "  why: --device chooses a device of this machine, and boards run on their "
            "processors\n"
            "  what to do: give one of them",
        )
        _refused(
            ibert(*command, "--rpc", "board:9090"),
            2,
            f"the library {gpu_library} cannot be run through RPC\n"
            "  where: --rpc\n"
            "  why: its kernels run on a GPU, and boards are asked for their processors only\n"
            "  what to do: run it on the machine that has the GPU",
        )


@pytest.mark.slow
def test_a_page(ibert: Callable[..., Outcome], gpu_library: Path, tmp_path: Path) -> None:
    pytest.importorskip("jinja2", reason="the page needs the extra report")
    page = tmp_path / "page.html"
    made = ibert("report", gpu_library, "-o", page, "--seconds", "0", "--json")
    assert made.code == 0, made.stderr
    (held,) = made.document["artefacts"]
    assert held["inspect"]["device"] == "cuda"
    assert [row["batch"] for row in held["bench"]["results"]] == [1, 4]
    assert "speed" not in held["missing"]
    read = Page(page.read_text(encoding="utf-8"))
    for pointer, value, text in read.numbers:
        assert resolve(read.document, pointer) == value and says(text, value), pointer


def test_no_emulator_stands_for_a_gpu(ibert: Callable[..., Outcome], gpu_library: Path) -> None:
    _refused(
        ibert("run", gpu_library, "--text", "hello", "--emulate"),
        4,
        f"the library {gpu_library} cannot be run under an emulator\n"
        "  why: its kernels run on a GPU, which no emulator here stands for\n"
        "  what to do: run it on a machine that has the GPU",
    )


def test_a_device_for_a_quantised_model(ibert: Callable[..., Outcome], tmp_path: Path) -> None:
    _refused(
        ibert("eval", tmp_path, "--against", tmp_path, "--device", "cuda"),
        2,
        "--device was given for a quantised model\n"
        f"  where: {tmp_path}\n"
        "  why: it is evaluated with NumPy; a compiled library runs on a device\n"
        "  what to do: leave --device out, or give a library that `ibert compile` wrote",
    )


def test_outputs_go_to_a_file(
    ibert: Callable[..., Outcome], gpu_library: Path, tmp_path: Path
) -> None:
    ids = np.array([[4, 5, 6, 7], [5, 6, 0, 0]], np.int32)
    mask = np.array([[1, 1, 1, 1], [1, 1, 0, 0]], np.int32)
    np.savez(tmp_path / "in.npz", input_ids=ids, attention_mask=mask)
    words = ("--inputs", tmp_path / "in.npz", "-o", tmp_path / "out.npz", "--integers")
    assert ibert("run", gpu_library, *words).code == 0
    expected = TinyGpuModel().reference(ids, mask, np.zeros_like(ids))
    with np.load(tmp_path / "out.npz") as arrays:
        np.testing.assert_array_equal(arrays["embedding"], expected["embedding"])
