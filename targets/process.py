"""Processes that do one thing at a time for this one, with timeouts.

What may block, crash or take too long (calls over a network, LLVM, code that is being tried) runs
in a process of its own, which is asked through a socket and can be left or killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any

from ibert_tvm.common.errors import TargetError


class ProcessError(TargetError):
    """What was asked could not be done there; `kind` names the exception, the text says why."""

    def __init__(self, kind: str, text: str) -> None:
        self.kind = kind
        super().__init__(text)


class ProcessEnded(TargetError):
    """The process ended before it answered; the text is the last line that it printed."""


class ServiceProcess:
    """A Python module that serves requests in a process of its own.

    Parameters
    ----------
    module
        Its ``main`` calls `serve`.
    environment
        Variables to set.
    """

    def __init__(self, module: str, environment: Mapping[str, str] | None = None) -> None:
        ours, theirs = socket.socketpair()
        # The process finds our packages where they are, installed or not.
        packages = str(Path(__file__).resolve().parents[1])
        inherited = os.environ.get("PYTHONPATH")
        path = packages if not inherited else f"{packages}{os.pathsep}{inherited}"
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the process)
        with theirs:
            # Of another process group: an interrupt from the keyboard does not reach it.
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, str(theirs.fileno())],
                env={**os.environ, "PYTHONPATH": path, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._socket = ours
        self._connection = Connection(os.dup(ours.fileno()))

    def call(self, operation: str, values: tuple[object, ...], wait: float, limit: float) -> Any:
        """Ask for an operation.

        Parameters
        ----------
        operation, values
            What to do, with what.
        wait
            Seconds to wait for the answer.
        limit
            Seconds after which the process ends itself if it is not done, whatever became of us.

        Returns
        -------
        Any
            The answer.

        Raises
        ------
        TimeoutError
            If there was no answer in time; the process is still at it.
        ProcessEnded
            If the process ended.
        ProcessError
            If the operation raised an exception there.
        """
        try:
            self._connection.send((limit, operation, values))
            if not self._connection.poll(wait):
                raise TimeoutError
            succeeded, answer = self._connection.recv()
        except TimeoutError:
            raise
        except (EOFError, OSError, ValueError) as error:  # ValueError: closed by another thread
            raise ProcessEnded(self._last_line()) from error
        if not succeeded:
            raise ProcessError(*answer)
        return answer

    def has_ended(self) -> bool:
        """Whether the process is no more."""
        return self._process.poll() is not None

    def leave(self, wait: float) -> bool:
        """Close the connection, upon which the process ends after what it is doing.

        Parameters
        ----------
        wait
            Seconds to wait for its end.

        Returns
        -------
        bool
            Whether it ended.
        """
        self._disconnect()
        try:
            self._process.wait(wait)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()
        self._process.wait()
        self._disconnect()

    def _disconnect(self) -> None:
        with contextlib.suppress(OSError):  # the process closed it already
            # A thread that waits for an answer is woken by this, and not by a mere close.
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._connection.close()
        self._log.close()

    def _last_line(self) -> str:
        try:
            status = self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            return ""
        if self._log.closed:
            return ""
        self._log.seek(0)
        lines = self._log.read().decode("utf-8", "replace").strip().splitlines()
        if lines:
            return lines[-1].strip()
        return signal.Signals(-status).name if status < 0 else f"exit status {status}"


def serve(
    descriptor: int, handle: Callable[[str, tuple[Any, ...]], Any], finish: Callable[[], None]
) -> None:
    """Serve requests until the other side closes; called in the process.

    Parameters
    ----------
    descriptor
        Number of the socket's file descriptor.
    handle
        Called with the operation and its values; what it raises is sent back.
    finish
        Called in the end; it has ten seconds.
    """
    connection = Connection(descriptor)
    try:
        while True:
            limit, operation, values = connection.recv()
            signal.setitimer(signal.ITIMER_REAL, limit)  # the signal's default ends the process
            try:
                reply = (True, handle(operation, values))
            except Exception as error:
                reply = (False, (type(error).__name__, str(error)))
            signal.setitimer(signal.ITIMER_REAL, 0)
            connection.send(reply)
    except (EOFError, OSError):
        signal.setitimer(signal.ITIMER_REAL, 10)
        finish()


def hide_torch() -> None:
    """Keep TVM's interface from importing torch into a process that needs none."""
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type]
