"""The memory functions of packages: as those of C, no byte outside, every branch."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.processes import ROOT, run_captured

_SOURCE = ROOT / "targets" / "bare_metal" / "memory.c"
_MAIN = Path(__file__).with_name("memory_functions.c")


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [("-O0", "--coverage"), ("-O2", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")],
    ids=["branches", "sanitised"],
)
def test_memory_functions(tmp_path: Path, flags: tuple[str, ...]) -> None:
    (tmp_path / "memory.c").write_text(_SOURCE.read_text())
    names = [f"-D{name}=own_{name}" for name in ("memcpy", "memmove", "memset")]
    # Of the two files, only the one under test has the other names.
    for command in (
        ["gcc", "-std=c99", "-g", *flags, *names, "-c", "memory.c"],
        ["gcc", "-std=c99", "-g", *flags, str(_MAIN), "memory.o", "-o", "main"],
        ["./main"],
    ):
        subprocess.run(command, cwd=tmp_path, check=True)
    if "--coverage" in flags:
        done = run_captured(["gcov", "-b", "-c", "memory.c"], cwd=tmp_path, check=True)
        shares = dict(
            re.findall(r"^(Lines executed|Taken at least once):([\d.]+)%", done.stdout, re.M)
        )
        assert shares == {"Lines executed": "100.00", "Taken at least once": "100.00"}
