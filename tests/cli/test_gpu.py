"""Commands on a library of a GPU, which a stand-in is here."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from tests.arm.tools import needs
from tests.commands import Ibert, Refused
from tests.cuda.gpu_library import TinyGpuModel
from tests.cuda.stand_in_gpu import load
from tests.report.pages import Page, resolve, says

_QUICK = ("--seconds", "0.02")


@pytest.fixture(scope="module")
def gpu_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    needs("g++")
    load().become(75)
    shapes = ((1, 8), (4, 8))
    return TinyGpuModel(shapes=shapes).build(tmp_path_factory.mktemp("cli") / "gpu.so")


@pytest.mark.representatives(1)
@pytest.mark.parametrize("options", [(), ("--device", "cuda"), ("--device", "cuda:0")])
def test_run(ibert: Ibert, library: Path, gpu_library: Path, options: tuple[str, ...]) -> None:
    words = ("--text", "hello world", "--text", "big", "--integers", "--json")
    outcome = ibert("run", gpu_library, *words, *options)
    assert (outcome.code, outcome.stderr) == (0, "")
    assert outcome.document["device"] == "cuda:0"
    on_processor = ibert("run", library, *words, "--device", "cpu").document
    assert on_processor["device"] == "cpu"
    assert outcome.document["outputs"] == on_processor["outputs"]


@pytest.mark.slow
def test_bench(ibert: Ibert, gpu_library: Path) -> None:
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
def test_bench_for_people(ibert: Ibert, gpu_library: Path) -> None:
    outcome = ibert("bench", gpu_library, *_QUICK, "--batch", "4", "--per-layer")
    assert outcome.code == 0
    first, header = outcome.stdout.splitlines()[:2]
    assert first == (
        f"{gpu_library} for t4, on cuda:0: Stand-in T4, sm_75, 40 multiprocessors; full rows"
    )
    assert "GPU ms" in header and "threads" not in header and "ceiling" not in header
    assert "ceiling of" not in outcome.stdout
    assert "\n4x8, by kind of kernel\n" in outcome.stdout


def test_inspect(ibert: Ibert, library: Path, gpu_library: Path) -> None:
    document = ibert("inspect", gpu_library, "--json").document
    assert (document["device"], document["architectures"]) == ("cuda", ["sm_75"])
    lines = [line.split() for line in ibert("inspect", gpu_library).stdout.splitlines()]
    assert ["runs", "on", "an", "NVIDIA", "GPU", "with", "code", "for", "sm_75"] in lines
    document = ibert("inspect", library, "--json").document
    assert (document["device"], document["architectures"]) == ("cpu", [])
    lines = [line.split() for line in ibert("inspect", library).stdout.splitlines()]
    assert ["runs", "on", "the", "processor"] in lines


@pytest.mark.representatives(1)
@pytest.mark.parametrize("words", ["run --text hello", "bench"])
def test_what_a_gpu_does_not_take(
    refused: Refused, library: Path, gpu_library: Path, words: str
) -> None:
    command, *more = words.split()
    refused(command, library, *more, "--device", "cuda")
    refused(command, gpu_library, *more, "--device", "cpu")
    refused(command, gpu_library, *more, "--threads", "2")
    refused(command, gpu_library, *more, "--device", "cuda", "--rpc", "board:9090")
    refused(command, gpu_library, *more, "--rpc", "board:9090")


def test_another_architecture(refused: Refused, gpu_library: Path) -> None:
    gpu = load()
    gpu.become(90)
    try:
        refused("run", gpu_library, "--text", "hello")
    finally:
        gpu.become(75)


@pytest.mark.slow
def test_unknown_devices(refused: Refused, gpu_library: Path) -> None:
    for command, *more in (("run", "--text", "hello"), ("bench",), ("eval", "--against", "m")):
        refused(command, gpu_library, *more, "--device", "gpu")
    for device in ("cuda:", "cuda:-1", "cuda:x", "CUDA", ""):
        refused("bench", gpu_library, "--device", device)


@pytest.mark.slow
def test_a_page(ibert: Ibert, gpu_library: Path, tmp_path: Path) -> None:
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


def test_no_emulator_stands_for_a_gpu(refused: Refused, gpu_library: Path) -> None:
    refused("run", gpu_library, "--text", "hello", "--emulate")


def test_a_device_for_a_quantised_model(refused: Refused, tmp_path: Path) -> None:
    refused("eval", tmp_path, "--against", tmp_path, "--device", "cuda")


def test_outputs_go_to_a_file(ibert: Ibert, gpu_library: Path, tmp_path: Path) -> None:
    ids = np.array([[4, 5, 6, 7], [5, 6, 0, 0]], np.int32)
    mask = np.array([[1, 1, 1, 1], [1, 1, 0, 0]], np.int32)
    np.savez(tmp_path / "in.npz", input_ids=ids, attention_mask=mask)
    words = ("--inputs", tmp_path / "in.npz", "-o", tmp_path / "out.npz", "--integers")
    assert ibert("run", gpu_library, *words).code == 0
    expected = TinyGpuModel().reference(ids, mask, np.zeros_like(ids))
    with np.load(tmp_path / "out.npz") as arrays:
        np.testing.assert_array_equal(arrays["embedding"], expected["embedding"])
