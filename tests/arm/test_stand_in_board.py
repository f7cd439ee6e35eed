"""The whole path to a 64-bit ARM board, which qemu-user stands in for: run, bench, tune."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ibert_tvm.runtime.library_file import read_metadata
from tests.arm.small_bert import expected, inputs, small_bert
from tests.arm.stand_in_board import stand_in_board
from tests.arm.tools import board
from tests.cache import compiled_once
from tests.commands import Outcome
from tests.rpc.conftest import ibert_process as ibert
from tests.rpc.servers import Servers

pytestmark = [pytest.mark.slow(seconds=20), pytest.mark.qemu]
_LENGTH = 16


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    """A board with SDOT and without SMMLA."""
    board("aarch64-dotprod")
    with stand_in_board("stand-in") as running:
        yield running


@pytest.fixture(scope="module")
def artefact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "small.ibert"
    small_bert().save(folder)
    return folder


def _compiled(target: str) -> Path:
    return compiled_once(small_bert(), target, [(1, _LENGTH)])


def _run(library: Path, folder: Path, servers: Servers) -> Outcome:
    """Run it on padded inputs; the outputs must be those of the specification."""
    model = small_bert()
    arrays = inputs(1, _LENGTH, seed=3, tokens=11)
    np.savez(folder / "in.npz", **{name: arrays[name] for name in model.input_names})
    outcome = ibert(
        "run", library, "--inputs", folder / "in.npz", "-o", folder / "out.npz", "--integers",
        "--rpc-timeout", "120", *servers.rpc,
    )  # fmt: skip
    if outcome.code == 0:
        with np.load(folder / "out.npz") as outputs:
            names = [record.name for record in read_metadata(library).outputs]
            for name, right in zip(names, expected(model, arrays), strict=True):
                np.testing.assert_array_equal(outputs[name], right)
    return outcome


def test_stand_in_board_runs_what_was_compiled(servers: Servers, tmp_path: Path) -> None:
    assert _run(_compiled("aarch64-dotprod"), tmp_path, servers).code == 0


@pytest.mark.record
def test_stand_in_board_measures_and_tunes(
    servers: Servers, artefact: Path, tmp_path: Path
) -> None:
    plain = _compiled("aarch64-dotprod")
    measured = ibert(
        "bench", plain, "--seconds", "0.1", "--threads", "1", "--rpc-timeout", "120", "--json",
        *servers.rpc,
    ).document  # fmt: skip
    assert measured["machine"]["system"].startswith("aarch64, TVM 0.")
    assert measured["results"][0]["min_ms"] > 0

    database = tmp_path / "db"
    tuned = ibert(
        "tune", artefact, "--target", "aarch64-dotprod", "--trials", "2", "--seq-len", _LENGTH,
        "--database", database, "--rpc-timeout", "120", "--json", *servers.rpc,
    ).document  # fmt: skip
    for kernel in tuned["kernels"]:
        assert (kernel["trials"], kernel["failed"]) == (2, 0), kernel["error"]

    best, target = tmp_path / "tuned.so", ("--target", "aarch64-dotprod")
    options = ("--seq-len", _LENGTH, *target, "--database", database)
    outcome = ibert("compile", artefact, "-o", best, *options)
    assert outcome.code == 0, outcome.stderr
    assert _run(best, tmp_path, servers).code == 0


def test_stand_in_board_refuses_what_it_cannot_run(servers: Servers, tmp_path: Path) -> None:
    outcome = _run(_compiled("aarch64-i8mm"), tmp_path, servers)
    assert (outcome.code, outcome.stderr) == (
        4,
        "error: the library does not run on the board's processor\n"
        "  where: target 'aarch64-i8mm', a board with aarch64\n"
        "  why: it needs i8mm; the board has: aes, asimd, asimddp, asimdhp, asimdrdm, atomics, "
        "crc32, fp, fphp\n"
        "  what to do: compile it for a target that needs no more than that; `ibert targets` "
        "lists them\n",
    )
    outcome = _run(_compiled("x86-64"), tmp_path, servers)
    assert outcome.code == 4
    assert "the board's loader refuses it: " in outcome.stderr
    assert "it is for another architecture" in outcome.stderr
