"""The measuring process's side of a worker: start it, give it its turn, stop it."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from .models import Cell, ModelSpec
from .peers import place_of

__all__ = ["Served", "Worker", "WorkerError", "ask", "build_artefact", "ending_with_this"]

if TYPE_CHECKING:
    from typing_extensions import Self

ROOT = Path(__file__).resolve().parent.parent
_CHILD = ROOT / "benchmarks" / "child.py"


class WorkerError(Exception):
    """A worker failed; the message is the last line that it wrote."""


def _worker(
    action: str, spec: ModelSpec, peer: str, cell: Cell, cache: Path, *rest: object
) -> tuple[list[str], Path]:
    """The command of a worker, and the folder that it runs in: the checkout of its sources.

    Raises
    ------
    WorkerError
        If the peer is of a commit that there is not.
    """
    try:
        place = place_of(peer, cache)
    except FileNotFoundError as error:
        raise WorkerError(str(error)) from error
    before, after = ((), rest) if action == "build" else (rest[:1], rest[1:])
    arguments = (action, spec.name, place.peer, cell, *before, place.cache, *after)
    return [sys.executable, "-m", "benchmarks.worker", *map(str, arguments)], place.root


def ending_with_this(command: list[str]) -> list[str]:
    """The command as one whose process the kernel ends with this one, even while it is stopped.

    With this thread, to be exact: it must not end before the command does.
    """
    return [sys.executable, "-IS", str(_CHILD), str(os.getpid()), *command]


def _reason(text: str) -> str:
    """The last exception in a log, or its last line: libraries still print while they end."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    raised = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Exit)\b", line)]
    return (raised or lines or ["no message"])[-1]


def build_artefact(spec: ModelSpec, peer: str, cell: Cell, cache: Path) -> None:
    """Build a peer's artefact unless it is cached, in a process of its own.

    Raises
    ------
    WorkerError
        If the build fails; the whole log is in ``cache/logs``.
    """
    log = cache / "logs" / f"build-{spec.name}-{peer.replace('/', '-')}-{cell}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    command, root = _worker("build", spec, peer, cell, cache)
    with log.open("w") as stream:
        done = subprocess.run(
            ending_with_this(command),
            cwd=root,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            check=False,
        )
    if done.returncode != 0:
        raise WorkerError(
            f"building failed: {_reason(log.read_text(errors='replace'))} (log: {log})"
        )


def ask(
    action: str, spec: ModelSpec, peer: str, cell: Cell, threads: int, cache: Path
) -> dict[str, Any]:
    """Load and run a peer in a process that does nothing else, and return what it says.

    Parameters
    ----------
    action : str
        ``memory``: memory in MiB by kind, in ``stages`` (at ``start``, when ``loaded``, when it
        ``ran``), and the largest ``mappings``; ``profile``: where the time of this project goes,
        ``by_kind`` and ``by_role``.
    spec, peer, cell, threads, cache
        What to load, and from where.

    Raises
    ------
    WorkerError
        If it fails.
    """
    command, root = _worker(action, spec, peer, cell, cache, threads)
    done = subprocess.run(
        ending_with_this(command),
        cwd=root,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0 or not done.stdout:
        raise WorkerError(_reason(done.stderr))
    return dict(json.loads(done.stdout))


class Served:
    """A process that answers JSON lines, stopped except while it works on one.

    Runtimes keep their threads spinning for a while after a call; a stopped process cannot disturb
    the one whose turn it is.

    Parameters
    ----------
    command : list of str
        What to start; it says hello first.
    timeout : float
        Seconds until it must have said hello.
    root : Path
        Folder that it runs in.

    Attributes
    ----------
    hello : dict
        Its first message.
    """

    def __init__(self, command: list[str], timeout: float = 600, root: Path = ROOT) -> None:
        self._log = Path(tempfile.mkstemp(prefix="worker-", suffix=".log")[1])
        with self._log.open("w") as stream:
            # A session of its own: Ctrl-C is for the measuring process, which then ends this one.
            self._process = subprocess.Popen(
                ending_with_this(command),
                cwd=root,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stream,
                text=True,
                start_new_session=True,
            )
        try:
            self.hello = self._reply(timeout)
        except BaseException:
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
            raise WorkerError(f"ended: {_reason(self._log.read_text(errors='replace'))}")
        return dict(json.loads(line))

    def _pause(self) -> None:
        os.kill(self._process.pid, signal.SIGSTOP)

    def ask(self, message: dict[str, Any], timeout: float) -> dict[str, Any]:
        """Let the process work on a message.

        Parameters
        ----------
        message : dict
            What it understands.
        timeout : float
            Seconds that it may take.

        Returns
        -------
        dict
            Its answer.

        Raises
        ------
        WorkerError
            If it ends, or does not answer in time.
        """
        os.kill(self._process.pid, signal.SIGCONT)
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()
        try:
            return self._reply(timeout)
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
                with suppress(BrokenPipeError):  # a command that nobody read
                    stream.close()
        self._log.unlink(missing_ok=True)
        time.sleep(0.05)  # its memory is given back before the next one is measured

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class Worker(Served):
    """A loaded peer on one cell.

    Attributes
    ----------
    peer : str
        Its name.
    hello : dict
        ``load_seconds``, ``estimate_ms`` of one run, ``embedding`` of the first row; for a
        `workload` of texts ``tokens`` instead of the latter.
    """

    def __init__(
        self,
        spec: ModelSpec,
        peer: str,
        cell: Cell,
        threads: int,
        cache: Path,
        workload: str = "cell",
    ) -> None:
        self.peer = peer
        command, root = _worker("serve", spec, peer, cell, cache, threads, workload)
        super().__init__(command, root=root)

    def turn(self, seconds: float, warm_up: float, least: int) -> dict[str, Any]:
        """Let the worker run the model for `seconds`, and at least `least` times.

        Returns
        -------
        dict
            ``times_ms`` of every run after the warm-up, ``processor_seconds``, ``peak_mib``.
        """
        command = {"seconds": seconds, "warm_up": warm_up, "least": least}
        return self.ask(command, timeout=300 + 10 * seconds)
