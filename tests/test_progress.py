"""The line of progress: its estimates, and that it is on a terminal's stderr and nowhere else."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ibert_tvm import progress as progress_module
from ibert_tvm.progress import Estimate, clock, progress, without_lines
from tests.processes import PATIENCE, wait_until, without_progress


class _Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_step_that_counts_is_judged_by_its_own_pace() -> None:
    time = _Clock()
    estimate = Estimate({"import": 1, "calibrate": 4}, clock=time)
    estimate.step("import")
    time.now += 6
    assert (estimate.done, estimate.left) == (0, None)
    estimate.step("calibrate")
    assert estimate.left == pytest.approx(24)  # by the pace of the first
    time.now += 1
    estimate.advance(1, 10)
    assert estimate.left == pytest.approx(9)
    time.now += 2
    assert estimate.left == pytest.approx(7)  # it counts down in between
    assert estimate.done == pytest.approx((1 + 0.4) / 5)
    assert estimate.elapsed == 9


def test_later_steps_take_what_their_shares_say() -> None:
    time = _Clock()
    estimate = Estimate({"calibrate": 3, "compile": 1}, clock=time)
    estimate.step("calibrate")
    time.now += 3
    estimate.advance(5, 10)
    assert estimate.left == pytest.approx(3 + 2)
    time.now += 100  # longer than expected: the rest of this step is over at any moment
    assert estimate.left == 0
    estimate.step("compile")
    assert estimate.left == pytest.approx(103 / 3)


def test_nothing_is_said_of_the_time_before_there_is_something_to_say() -> None:
    time = _Clock()
    estimate = Estimate({"evaluate": 1}, clock=time)
    estimate.step("evaluate")
    time.now += 1
    estimate.advance(1, 1000)
    assert estimate.left is None
    estimate.advance(0, 0)
    assert (estimate.left, estimate.done) == (None, 0)
    estimate.step("no step of it")
    assert estimate.done == 0


def test_a_limit_ends_it() -> None:
    time = _Clock()
    estimate = Estimate({"tune": 1}, limit=60, clock=time)
    estimate.step("tune")
    assert estimate.left == 60
    time.now += 10
    estimate.advance(1, 10)
    assert estimate.left == 50
    time.now += 100
    assert estimate.left == 0


def test_clock() -> None:
    assert [clock(s) for s in (0.4, 59.6, 61, 3600 + 62)] == ["0:00", "1:00", "1:01", "1:01:02"]


_JOB = """
import logging, sys, time
from pathlib import Path
from ibert_tvm import targets
from ibert_tvm.cli import main
from ibert_tvm.progress import progress
def until(name):
    "Wait until whoever gave a folder has seen what is shown."
    if sys.argv[1:]:
        Path(sys.argv[1], "waits").touch()
        while not Path(sys.argv[1], name).exists():
            time.sleep(0.01)
def job():
    with progress({"import [the] model": 1, "calibrating": 1}) as line:
        until("import")
        line.step("calibrating")
        line.advance(1, 3)
        until("left")
        logging.getLogger("ibert_tvm").warning("a warning")
    return []
targets.list_targets = job
sys.exit(main(["targets", "--json"]))
"""


def _on_a_terminal(
    script: str, folder: Path, at: dict[str, Callable[[subprocess.Popen[bytes]], object]]
) -> tuple[int, str, str]:
    """Exit code, stdout (a pipe) and what is written to the terminal that is stderr.

    As soon as what is written there matches one of `at`, its function is called.
    """
    master, slave = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
    with subprocess.Popen(
        [sys.executable, "-c", script, str(folder)],
        stdout=subprocess.PIPE,
        stderr=slave,
        stdin=slave,
        env=environment,
        start_new_session=True,
    ) as process:
        os.close(slave)
        seen, coming = b"", list(at)
        while select.select([master], [], [], PATIENCE)[0]:
            try:
                seen += os.read(master, 65536)
            except OSError:  # the terminal's last user has closed it
                break
            if coming and re.search(coming[0], seen.decode("utf-8", "replace")):
                at[coming.pop(0)](process)
        else:
            process.kill()
        assert process.stdout is not None
        stdout = process.stdout.read().decode()
        code = process.wait()
    os.close(master)
    return code, stdout, seen.decode()


_LEFT = r"calibrating .*\d:\d\d, \d:\d\d left"


def test_on_a_terminal_there_is_one_line_and_the_time_left(tmp_path: Path) -> None:
    shown = {
        r"import \[the\] model": lambda _: (tmp_path / "import").touch(),
        _LEFT: lambda _: (tmp_path / "left").touch(),
    }
    code, stdout, seen = _on_a_terminal(_JOB, tmp_path, shown)
    assert code == 0
    assert stdout.split() == ["{", '"targets":', "[]", "}"]
    assert "import [the] model" in seen and re.search(_LEFT, seen)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen)
    assert max(len(line) for line in re.split(r"[\r\n]+", plain)) <= 80
    assert "WARNING: a warning" in plain
    assert seen.rstrip().endswith("\x1b[2K")  # the line is gone in the end


def test_an_interrupt_leaves_one_line(tmp_path: Path) -> None:
    def interrupt(process: subprocess.Popen[bytes]) -> None:
        wait_until((tmp_path / "waits").exists)
        process.send_signal(signal.SIGINT)

    script = _JOB.replace(', "--json"', "")
    code, stdout, seen = _on_a_terminal(script, tmp_path, {"import": interrupt})
    assert (code, stdout) == (130, "")
    assert seen.endswith("\x1b[2Kerror: interrupted\r\n") or seen.endswith("error: interrupted\r\n")
    assert "Traceback" not in seen


def test_elsewhere_there_is_a_line_every_ten_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert progress_module._EVERY == 10
    monkeypatch.setattr(progress_module, "_EVERY", 0.01)
    with progress({"importing": 1, "calibrating": 3}) as line:
        line.step("calibrating", "calibrating\x1b[2J")
        line.advance(1, 2)
        said: list[str] = []
        wait_until(lambda: said.extend(capsys.readouterr().err.splitlines(True)) or said)
    first = said[-1].rstrip("\n") if said[-1].endswith("left\n") else said[-2]
    with without_lines(), without_lines(False), progress("importing"):
        time.sleep(0.1)
    assert capsys.readouterr().err == ""
    assert without_progress(f"{first}\nerror\n") == "error\n"
    assert re.fullmatch(r"calibrating\\x1b\[2J: 62% done, \d:\d\d, \d:\d\d left", first)


@pytest.mark.slow
def test_a_short_job_elsewhere_says_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", _JOB], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "WARNING: a warning\n")
    told = subprocess.run(
        [sys.executable, "-c", _JOB.replace('"--json"', '"-v"')],
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.stderr == "INFO: import [the] model\nINFO: calibrating\nWARNING: a warning\n"
