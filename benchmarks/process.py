"""The measuring process's side of a worker: start it, give it its turn, stop it."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from .models import Cell, ModelSpec

__all__ = ["Worker", "WorkerError", "build_artefact"]

ROOT = Path(__file__).resolve().parent.parent


class WorkerError(Exception):
    """A worker failed; the message is the last line that it wrote."""


def _command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "benchmarks.worker", *map(str, arguments)]


def _last_line(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1].strip() if lines else "no message"


def build_artefact(spec: ModelSpec, peer: str, cell: Cell, cache: Path) -> None:
    """Build a peer's artefact unless it is cached, in a process of its own.

    One at a time: quantising several copies of a large model at once exhausts the memory.

    Raises
    ------
    WorkerError
        If the build fails; the whole log is in ``cache/logs``.
    """
    log = cache / "logs" / f"build-{spec.name}-{peer}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as stream:
        done = subprocess.run(
            _command("build", spec.name, peer, cell, cache),
            cwd=ROOT,
            stdout=stream,
            stderr=stream,
            check=False,
        )
    if done.returncode != 0:
        raise WorkerError(f"building failed: {_last_line(log)} (log: {log})")


class Worker:
    """A loaded peer, stopped except during its turn.

    Runtimes keep their threads spinning for a while after a call; a stopped process cannot disturb
    the one whose turn it is.
    """

    def __init__(self, spec: ModelSpec, peer: str, cell: Cell, threads: int, cache: Path) -> None:
        self.peer = peer
        self._log = Path(tempfile.mkstemp(prefix="worker-", suffix=".log")[1])
        with self._log.open("w") as stream:
            self._process = subprocess.Popen(
                _command("serve", spec.name, peer, cell, threads, cache),
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stream,
                text=True,
            )
        try:
            self.hello = self._reply(timeout=600)
        except WorkerError:
            self.close()
            raise
        self._pause()

    def _reply(self, timeout: float) -> dict[str, Any]:
        stream = self._process.stdout
        assert stream is not None
        if not select.select([stream], [], [], timeout)[0]:
            raise WorkerError(f"no answer within {timeout:.0f} s")
        line = stream.readline()
        if not line:
            raise WorkerError(f"ended: {_last_line(self._log)}")
        return json.loads(line)

    def _pause(self) -> None:
        os.kill(self._process.pid, signal.SIGSTOP)

    def turn(self, seconds: float, warm_up: float, least: int) -> dict[str, Any]:
        """Let the worker run the model for `seconds`, and at least `least` times.

        Returns
        -------
        dict
            ``times_ms`` of every run after the warm-up, ``resident_mib``, ``peak_mib``.
        """
        os.kill(self._process.pid, signal.SIGCONT)
        assert self._process.stdin is not None
        command = {"do": "run", "seconds": seconds, "warm_up": warm_up, "least": least}
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        try:
            return self._reply(timeout=300 + 10 * seconds)
        finally:
            if self._process.poll() is None:
                self._pause()

    def close(self) -> None:
        """End the process."""
        if self._process.poll() is None:
            self._process.kill()  # works on a stopped process, too
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        self._log.unlink(missing_ok=True)
        time.sleep(0.05)  # its memory is given back before the next one is measured

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
