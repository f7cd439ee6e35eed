"""`ibert tune`, here and through a server on this machine; what `ibert compile` makes of it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
import tvm

from ibert_tvm.common.integrity import sealed
from ibert_tvm.compiler.statements import tuning_statement
from ibert_tvm.runtime import load_library
from ibert_tvm.runtime.library_file import read_metadata
from ibert_tvm.schedules import schedule_module
from ibert_tvm.targets import get_target
from ibert_tvm.tuning import TunedKernels
from ibert_tvm.verification import verify
from tests.commands import Ibert
from tests.lowering import lowered
from tests.processes import PATIENCE, start_captured, wait_until, without_progress
from tests.snapshots import Messages

from .conftest import environment, ibert_process
from .servers import Servers
from .small_model import expected, inputs_of, small_model

# Every builder is a process, which takes a second to start.
_SIZE = ("--seq-len", "8", "--target", "x86-64", "--jobs", "1")
_KERNELS = 1


def _trials(folder: Path) -> list[dict[str, object]]:
    text = (folder / "trials.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines(True) if line.endswith("\n")]


@pytest.fixture(scope="module")
def tuned(artefact: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with two trials per kernel, measured on this machine."""
    folder = tmp_path_factory.mktemp("tuned") / "db"
    arguments = ("--database", folder, "--trials", "2", *_SIZE)
    document = ibert_process("tune", artefact, *arguments, "--json").document
    assert (document["target"], document["board"], document["stopped"]) == ("x86-64", None, "")
    assert len(document["kernels"]) == _KERNELS
    for kernel in document["kernels"]:
        assert (kernel["trials"], kernel["new"], kernel["failed"]) == (2, 2, 0), kernel["error"]
        assert 0 < kernel["best_ms"] <= kernel["default_ms"]
        assert kernel["faster"] == kernel["default_ms"] / kernel["best_ms"]
    return folder


@pytest.fixture
def database(tuned: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(tuned, tmp_path / "db"))


@pytest.mark.slow
def test_a_board_goes_on_where_this_machine_stopped(
    ibert: Ibert, servers: Servers, artefact: Path, database: Path
) -> None:
    before = _trials(database)
    arguments = ("--database", database, "--trials", "3", *_SIZE)
    document = ibert("tune", artefact, *arguments, *servers.rpc, "--json").document
    assert document["board"] == str(servers.tracker)
    for kernel in document["kernels"]:
        assert (kernel["trials"], kernel["new"], kernel["failed"]) == (3, 1, 0), kernel["error"]
    trials = _trials(database)
    assert trials[: len(before)] == before
    assert {trial["board"] for trial in trials[len(before) :]} == {str(servers.tracker)}
    again = ibert("tune", artefact, *arguments)
    assert again.code == 0
    assert "\n0 trials in " in again.stdout
    assert _trials(database) == trials


@pytest.mark.slow
def test_compile_uses_the_measurements(
    ibert: Ibert, artefact: Path, database: Path, tmp_path: Path
) -> None:
    lines = [json.loads(line) for line in (database / "trials.jsonl").read_text().splitlines()]
    for line in lines:  # what was no default was much faster
        default = lines[[other["key"] for other in lines].index(line["key"])]["tile"]
        line["seconds"] = [1.0 if line["tile"] == default else 0.5]
    (database / "trials.jsonl").write_text(
        "".join(json.dumps(sealed(line)) + "\n" for line in lines)
    )
    outcome = ibert(
        "compile", artefact, "-o", tmp_path / "tuned.so", "--target", "x86-64",
        "--seq-len", "8,16", "--database", database, "--json",
    )  # fmt: skip
    report = outcome.document["report"]["tuning"]
    assert (report["database"], report["hits"], report["misses"]) == (
        database.name, _KERNELS, _KERNELS,
    )  # fmt: skip
    known = [row for row in report["kernels"] if row["tuned"]]
    assert all(row["kernel"].startswith("main_b1_s8_") for row in known)
    assert [row["faster"] for row in known] == [2.0] * _KERNELS
    assert read_metadata(tmp_path / "tuned.so").versions  # still readable
    model = small_model()
    library = load_library(tmp_path / "tuned.so", num_threads=1)
    for length in (8, 16):
        arrays = inputs_of(length, seed=length)
        got = library.run(**arrays, dequantize=False)["hidden"].values
        np.testing.assert_array_equal(got, expected(model, arrays))
    for given, passed in ((database, True), (None, False)):
        certificate = verify(tmp_path / "tuned.so", artefact, inputs=1, database=given)
        (check,) = (c for c in certificate.checks if c.name == "made from the model")
        assert check.passed == passed, check.findings


@pytest.mark.slow
def test_without_records_kernels_are_those_of_no_database(database: Path) -> None:
    (database / "trials.jsonl").unlink()
    target = get_target("x86-64")
    module = lowered(small_model(), target, [(1, 8)]).program.module
    tuned = TunedKernels(database, target)
    with_database = schedule_module(module, target, tuned)
    tvm.ir.assert_structural_equal(with_database, schedule_module(module, target))
    report = tuned.report()
    assert (report["hits"], report["misses"]) == (0, _KERNELS)
    assert tuning_statement(report) == (
        f"tuned: 0 kernels as measured in {database.name}; 1 not measured, scheduled by default "
        "(--json lists them)"
    )


@pytest.mark.slow
def test_a_database_of_another_target(
    ibert: Ibert, artefact: Path, database: Path, tmp_path: Path, messages: Messages
) -> None:
    compiled = ibert(
        "compile", artefact, "-o", tmp_path / "m.so", "--target", "rpi4", "--seq-len", "8",
        "--database", database,
    )  # fmt: skip
    assert compiled.code == 4
    messages.check(compiled.stderr)


def test_a_target_that_this_machine_is_not(
    ibert: Ibert, artefact: Path, tmp_path: Path, messages: Messages
) -> None:
    words = ("tune", artefact, "--trials", "1", "--database", tmp_path / "db", "--seq-len", "8")
    board = ibert(*words, "--target", "rpi4")
    assert board.code == 4
    messages.check(board.stderr, machine=os.uname().machine)
    controller = ibert(*words, "--target", "cortex-m4")
    assert controller.code == 4
    messages.check(controller.stderr)
    assert not (tmp_path / "db").exists()


@pytest.mark.slow
def test_an_interrupt_keeps_what_was_measured(ibert: Ibert, artefact: Path, tmp_path: Path) -> None:
    folder = tmp_path / "db"
    words = ["tune", str(artefact), "--database", str(folder), "--trials", "200", *_SIZE]
    process = start_captured([sys.executable, "-m", "ibert_tvm", *words], env=environment())
    trials = folder / "trials.jsonl"
    wait_until(lambda: process.poll() or (trials.exists() and len(_trials(folder)) >= 2))
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=PATIENCE)
    assert (process.returncode, stdout) == (130, "")
    assert without_progress(stderr) == "error: interrupted\n"
    kept = _trials(folder)
    assert len(kept) >= 2
    ended = ibert("tune", artefact, "--database", folder, "--trials", "1", *_SIZE, "--json")
    (first, *_others) = ended.document["kernels"]
    assert (first["trials"], first["new"]) == (len(kept), 0)


@pytest.mark.slow
def test_the_time_limit(ibert: Ibert, artefact: Path, database: Path) -> None:
    words = ("--database", database, "--trials", "50", "--time-limit", "1", "--json")
    words += (*_SIZE, "--jobs", "2")
    document = ibert("tune", artefact, *words).document
    assert document["stopped"] == "the time limit of 1 s is over"
    (kernel,) = document["kernels"]
    assert 2 <= kernel["trials"] < 50
