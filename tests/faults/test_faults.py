"""SIGKILL, a full disk and a failing one at calls that change an output: the old one or the new.

``python -m pytest -m record tests/faults`` has them at every call.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.examples import examples
from tests.faults.harness import CODES
from tests.processes import ROOT, run_captured, without_torch

_CONTROL_BYTES = 2**14


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("shim") / "shim.so"
    source = Path(__file__).with_name("shim.c")
    subprocess.run(
        ["gcc", "-O1", "-Wall", "-Wextra", "-shared", "-fPIC", source, "-o", library, "-ldl"],
        check=True,
    )
    return library


def faults(shim: Path, folder: Path, writer: str, step: int) -> tuple[list[str], int, int]:
    """What is wrong, calls, and cases."""
    control = folder / "control"
    control.write_bytes(bytes(_CONTROL_BYTES))
    arguments = [writer, str(folder / "place"), "0", str(step)]
    done = run_captured(
        [sys.executable, "-m", "tests.faults.harness", *arguments],
        cwd=ROOT,
        env=without_torch() | {"LD_PRELOAD": str(shim), "FAULT_CONTROL": str(control)},
    )
    *wrong, last = done.stdout.splitlines() or [""]
    assert done.returncode == 0 and last.endswith("cases"), done.stderr
    calls, cases = (int(word) for word in last.split() if word.isdigit())
    return [f"{line}\n{done.stderr[-3000:]}" for line in wrong], calls, cases


EVERY = [("save", 1, 30), ("tune", 1, 4), ("begin", 1, 10), ("export", 1, 40), ("tvm", 1, 40)]
SOME = [("save", 4, 30), ("tune", 1, 4), ("begin", 3, 10), ("export", 120, 40), ("tvm", 150, 40)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("writer", "step", "least"),
    examples([*SOME, *(e for e in EVERY if e not in SOME)], *SOME, otherwise="record", unpack=True),
)
def test_faults(shim: Path, tmp_path: Path, writer: str, step: int, least: int) -> None:
    wrong, calls, cases = faults(shim, tmp_path, writer, step)
    assert wrong == []
    assert calls >= least and cases == len(CODES) * -(-calls // step)
