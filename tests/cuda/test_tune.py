"""`ibert tune` for a GPU: its decisions, measured and checked on the stand-in, and used."""

from __future__ import annotations

import json
import re
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm_ffi
from tvm import tirx

from ibert_tvm.common.errors import ExitCode
from ibert_tvm.common.integrity import sealed
from ibert_tvm.runtime import load_library
from ibert_tvm.schedules.cuda.fallback import FallbackRule
from ibert_tvm.schedules.cuda.linear import TensorCoreLinearRule
from ibert_tvm.schedules.tiles import Tile
from ibert_tvm.schedules.tuning import Candidate, Search
from ibert_tvm.targets import TargetError, get_target
from ibert_tvm.tuning import TuneOptions
from ibert_tvm.tuning.measure import KernelBuilder, Measurer
from ibert_tvm.tuning.tuner import find_tasks
from tests.arm.tools import needs
from tests.commands import Ibert, Refused
from tests.cuda.real_gpu import RealGpu
from tests.cuda.stand_in_gpu import environment, images_for_stand_in, load
from tests.cuda.tools import cuda_toolchain
from tests.processes import run_captured, without_torch
from tests.rpc.small_model import expected, inputs_of, small_model
from tests.snapshots import Messages


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """A T4 in this process and in those that it starts, and g++ in the place of nvcc."""
    needs("g++")
    load().become(75)
    for name, value in without_torch(environment(capability=75)).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(KernelBuilder, "service", "tests.cuda.stand_in_builder")
    monkeypatch.setattr(
        "ibert_tvm.targets.cuda.toolchain.find_cuda_toolchain", lambda *_arguments: None
    )


@pytest.fixture
def size(
    device: RealGpu | None, gpu_target: str, request: pytest.FixtureRequest
) -> tuple[str, ...]:
    """Options that say what to tune for: the stand-in, or the GPU that there is."""
    if device is None:
        request.getfixturevalue("stand_in")
    return ("--seq-len", "8", "--target", gpu_target)


@pytest.fixture(scope="module")
def artefact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with one matrix product."""
    folder = tmp_path_factory.mktemp("model") / "small.ibert"
    small_model().save(folder)
    return folder


def _trials(folder: Path) -> list[dict[str, Any]]:
    text = (folder / "trials.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.slow
def test_decisions_are_measured_kept_and_used(
    ibert: Ibert, artefact: Path, tmp_path: Path, size: tuple[str, ...], device: RealGpu | None
) -> None:
    database = tmp_path / "db"
    words = ("tune", artefact, "--database", database, "--jobs", "1", *size)
    (kernel,) = ibert(*words, "--trials", "2", "--json").document["kernels"]
    assert (kernel["kind"], kernel["trials"], kernel["new"], kernel["failed"]) == (
        *("linear", 2, 2, 0),
    ), kernel["error"]
    assert 0 < kernel["best_ms"] <= kernel["default_ms"]
    assert set(kernel["tile"]) == {
        *("block_rows", "block_columns", "warp_rows", "warp_columns"),
        *("warp_depths", "stage_depth", "stages"),
    }
    before = _trials(database)
    if device is None:
        assert {trial["board"] for trial in before} == {"Stand-in T4"}

    (kernel,) = ibert(*words, "--trials", "2", "--json").document["kernels"]
    assert (kernel["trials"], kernel["new"]) == (2, 0)
    after = _trials(database)
    assert after == before

    default = after[0]["tile"]
    for trial in after:  # what is no default was much faster
        trial["seconds"] = [1.0 if trial["tile"] == default else 0.5]
    lines = "".join(json.dumps(sealed(trial)) + "\n" for trial in after)
    (database / "trials.jsonl").write_text(lines, encoding="utf-8")
    with images_for_stand_in() if device is None else nullcontext():
        words = ("compile", artefact, "-o", tmp_path / "tuned.so", "--database", database, *size)
        (row,) = ibert(*words, "--json").document["report"]["tuning"]["kernels"]
    assert (row["tuned"], row["faster"]) == (True, 2.0)
    assert row["tile"] != default
    model = small_model()
    library = load_library(tmp_path / "tuned.so")
    for seed in (1, 2):
        arrays = inputs_of(8, seed)
        got = library.run(**arrays, dequantize=False)["hidden"].values
        np.testing.assert_array_equal(got, expected(model, arrays))


def _spoil(monkeypatch: pytest.MonkeyPatch, value: int, other: int) -> None:
    """Put another number for one in every candidate but the default."""
    make = Search.candidate

    def changed(number: tirx.IntImm) -> tirx.IntImm:
        return tirx.IntImm(number.ty, other) if number.value == value else number

    def spoiled(search: Search, tile: Tile) -> Candidate | None:
        made = make(search, tile)
        if made is None or tile == search.space[0]:
            return made
        kernel = tvm_ffi.structural_map(made.kernel, (tirx.IntImm, changed))
        assert not tvm_ffi.structural_equal(kernel, made.kernel)
        return replace(made, kernel=kernel)

    monkeypatch.setattr(Search, "candidate", spoiled)


@pytest.mark.slow
def test_a_wrong_candidate_is_refused(
    ibert: Ibert,
    artefact: Path,
    tmp_path: Path,
    size: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _spoil(monkeypatch, -127, 0)  # the least result
    database = tmp_path / "db"
    words = ("tune", artefact, "--database", database, "--trials", "2", "--jobs", "1", *size)
    (kernel,) = ibert(*words, "--json").document["kernels"]
    assert (kernel["trials"], kernel["failed"]) == (2, 1)
    assert kernel["error"].startswith("wrong result: ")
    first, second, *again = _trials(database)
    assert (first["error"], second["seconds"]) == ("", [])
    assert kernel["tile"] == first["tile"] != second["tile"]
    assert [trial["tile"] for trial in again] == [first["tile"]] * len(again)


@pytest.mark.slow
@pytest.mark.usefixtures("stand_in")
def test_a_candidate_that_the_gpu_refuses_costs_one_trial() -> None:
    """The process that measures begins anew: after an error of CUDA's it is of no use."""
    description = get_target("t4")
    (task,) = find_tasks(small_model(), description, [(1, 8)])
    search = Search(task.name, task.function, description, task.space)
    default = search.candidate(task.space[0])
    assert default is not None
    threads = task.space[0].threads

    def more(number: tirx.IntImm) -> tirx.IntImm:
        return tirx.IntImm(number.ty, 2048) if number.value == threads else number

    wrong = replace(default, kernel=tvm_ffi.structural_map(default.kernel, (tirx.IntImm, more)))
    measurer = Measurer(description, TuneOptions(trials=1))
    with measurer.running():
        failed, right = measurer.measure([wrong, default], *task.data())
    assert failed.seconds == ()
    # How many blocks there are is up to the rule's default.
    assert re.fullmatch(
        r"CUDALaunch Error: cudaErrorInvalidValue grid=\(\d+,1,1\), block=\(2048,1,1\)",
        failed.error,
    )
    assert (right.error, len(right.seconds)) == ("", 10)


def _words(artefact: Path, folder: Path, *words: str) -> list[str]:
    command = ["tune", str(artefact), "--trials", "1", "--database", str(folder)]
    return [*command, "--seq-len", "8", *words]


@pytest.mark.slow
@pytest.mark.usefixtures("stand_in")
def test_without_a_gpu(artefact: Path, tmp_path: Path, messages: Messages) -> None:
    words = _words(artefact, tmp_path / "db", "--target", "t4")
    done = run_captured(
        [sys.executable, "-m", "ibert_tvm", *words], env=without_torch(environment(devices=0))
    )
    assert (done.returncode, done.stdout) == (ExitCode.TARGET, "")
    messages.check(done.stderr.rstrip())
    assert not (tmp_path / "db").exists()


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("words", ["--target a100", "--target t4 --rpc 127.0.0.1:9"])
def test_what_cannot_be_measured_here(
    artefact: Path, tmp_path: Path, refused: Refused, words: str
) -> None:
    refused(*_words(artefact, tmp_path / "db", *words.split()))
    assert not (tmp_path / "db").exists()


@pytest.mark.usefixtures("stand_in")
def test_without_a_compiler_nothing_is_written_down(
    artefact: Path, tmp_path: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(target: str, _architectures: object) -> None:
        raise TargetError(what="no nvcc", where=target, why="a test", todo="install it")

    monkeypatch.setattr("ibert_tvm.targets.cuda.toolchain.find_cuda_toolchain", missing)
    refused(*_words(artefact, tmp_path / "db", "--target", "t4"))
    assert not (tmp_path / "db").exists()


@pytest.mark.slow
def test_candidates_are_compiled_and_audited(tmp_path: Path) -> None:
    cuda_toolchain()
    target = get_target("t4")
    (task,) = find_tasks(small_model(), target, [(1, 8)])
    builder = KernelBuilder(target, 120.0)
    try:
        for rule, outcome in ((TensorCoreLinearRule(), ""), (FallbackRule(), "IMMA")):
            kernel = rule.schedule(task.function, target)
            assert isinstance(kernel, tirx.PrimFunc)
            named = kernel.with_attr("global_symbol", "kernel").with_attr("ibert.macs", 8 * 32 * 48)
            error = builder.build(named, tmp_path / "kernel.so")
            assert outcome in error
            assert bool(error) == bool(outcome)
    finally:
        builder.close()
