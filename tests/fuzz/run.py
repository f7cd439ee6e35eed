"""Fuzzing one reader in child processes, which may crash, hang or be out of memory."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.fuzz.worker import ALARM_SECONDS
from tests.processes import ROOT

CLOCK_SECONDS = 10 * ALARM_SECONDS
"""For one file by the clock, where it waits and computes nothing."""
LOOK_SECONDS = 1.0
_START_SECONDS = 900
_MOST_FINDINGS = 20


def fuzz(name: str, seconds: float, first: int = 0, count: int = 10**9) -> dict[str, Any]:
    """Give damaged files to a reader.

    Parameters
    ----------
    name
        One of `tests.fuzz.readers.READERS`.
    seconds
        How long, without what the process needs to start.
    first, count
        Number of the first case, and of cases at most.

    Returns
    -------
    dict
        ``cases``, ``refused``, ``accepted``, ``seconds``, ``peak_bytes``, and ``findings``: number
        of the case and what was wrong.
    """
    result: dict[str, Any] = {"cases": 0, "refused": 0, "accepted": 0, "peak_bytes": 0}
    result["findings"] = []
    left, number, started = seconds, first, time.monotonic()
    while number < first + count and left > 0 and len(result["findings"]) < _MOST_FINDINGS:
        before = time.monotonic()
        document, words = _worker(name, number, first + count, left)
        left -= time.monotonic() - before
        if isinstance(document, int):  # it died of this case
            result["findings"].append({"case": document, "what": words})
            result["cases"] += document + 1 - number
            number = document + 1
            continue
        result["cases"] += document["next"] - number
        number = document["next"]
        for key in ("refused", "accepted", "findings"):
            result[key] += document[key]
        result["peak_bytes"] = max(result["peak_bytes"], document["peak_bytes"])
        if not document["findings"]:
            break
    result["seconds"] = round(time.monotonic() - started, 1)
    return result


def _worker(name: str, first: int, last: int, seconds: float) -> tuple[Any, str]:
    """Counts of a process; or the case that ended it, and how."""
    with tempfile.TemporaryDirectory(prefix="ibert-fuzz-") as folder:
        progress = Path(folder) / "progress"
        command = [sys.executable, "-m", "tests.fuzz.worker", name]
        command += [str(first), str(last), str(seconds), str(progress)]
        with open(Path(folder) / "stderr", "w+b") as stderr:
            process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=stderr)
            try:
                wait(process, progress)
            finally:
                process.kill()
            stderr.seek(0)
            said = stderr.read().decode("utf-8", "replace")[-3000:]
        text = progress.read_text() if progress.exists() else ""
        if process.returncode == 0:
            return json.loads(text), ""
        if not text or process.returncode > 0:
            raise RuntimeError(f"fuzzing {name} failed itself: {said}")
        code = -process.returncode
        words = f"killed by {signal.Signals(code).name}"
        if code == signal.SIGPROF:
            words = f"no answer within {ALARM_SECONDS} s of processor time"
        if code == signal.SIGALRM:
            words = f"no answer within {CLOCK_SECONDS} s"
        return int(text), f"{words}\n{said}"


def wait(process: subprocess.Popen[bytes], progress: Path) -> None:
    """Wait until a process ends, and end it where it reads one case for too long by the clock.

    The clock is how often this process looked while the other was not stopped: time in which either
    of them is, or the machine sleeps, is not counted.
    """
    seen, looks = "", 0
    while True:
        try:
            process.wait(timeout=LOOK_SECONDS)
            return
        except subprocess.TimeoutExpired:
            pass
        text = progress.read_text() if progress.exists() else ""
        if text != seen:
            seen, looks = text, 0
        elif not _is_stopped(process.pid):
            looks += 1
        if looks * LOOK_SECONDS > (CLOCK_SECONDS if text else _START_SECONDS):
            process.send_signal(signal.SIGALRM)


def _is_stopped(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat").read_text()
    return stat[stat.rindex(")") + 2] in "tT"
