"""Talking to the process that holds a connection; errors that say what to do."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from ..process import ProcessEnded, ProcessError, ServiceProcess
from .address import SERVER_COMMAND, Address, BoardError, Listener, find_server
from .processor import BoardDescription

_START_SECONDS = 60.0
_CLOSE_SECONDS = 5.0
# A network of 1 MB/s, and a board that maps what it gets: time on top of the timeout.
_BYTES_PER_SECOND = 1e6
_DOING = {
    "start": "start the process that holds the connection",
    "open": "open a session",
    "upload": "load the library there",
    "describe": "ask for its processor",
    "prepare": "make the virtual machine",
    "prepare_plain": "allocate memory there",
    "run": "run the library",
    "time": "time the library",
    "measure": "measure a kernel",
    "close": "close the session",
}
_LOST = (
    "Channel closes",
    "SockChannel",
    "Connection reset",
    "Broken pipe",
    "connection reset",
    "closed",
    "code=kShutdown",
)
# What TVM's errors say, what that means, and what to do about it.
_MEANINGS = (
    (
        "cannot find server that matches key",
        "the server there has another key than the one given ({key})",
        "give --rpc-key with the key that the server was started with",
    ),
    (
        "is not TVM RPC server",
        "what listens there is no RPC server of TVM",
        "check the port; docs/rpc.md shows how boards are set up",
    ),
    (
        "server protocol=",
        "the board has another version of TVM: {line}",
        "install the same version of apache-tvm on both machines",
    ),
    (
        "RPCSessionTimeoutError",
        "the server ended the session after {lifetime} s",
        "try again with a longer --rpc-timeout",
    ),
)
_UNLOADABLE = (
    "cannot open shared object file",
    "wrong ELF class",
    "invalid ELF header",
    "undefined symbol",
    "not found (required by",
    "Exec format error",
)


class Board:
    """A board, or this machine, behind a process of its own.

    Parameters
    ----------
    address
        Where it is; None for this machine, where a crash then ends that process only.
    timeout
        Seconds to wait for an answer to anything, besides the time that transfers take and that
        measurements are asked to take.
    lifetime
        Seconds after which the board's server ends a session, so that a program that hangs there
        does not block it for ever.
    environment
        Variables for the process.
    worker
        Python module of the process; another one than the usual does the same on other devices.
    """

    def __init__(
        self,
        address: Address | None,
        timeout: float = 60.0,
        lifetime: float = 3600.0,
        environment: Mapping[str, str] | None = None,
        worker: str = "ibert_tvm.targets.rpc.worker",
    ) -> None:
        self.worker = worker
        self.address, self.timeout, self.lifetime = address, timeout, lifetime
        self.environment = dict(environment or {})
        self._process: ServiceProcess | None = None

    def __enter__(self) -> Board:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def name(self) -> str:
        """The address, for messages."""
        return "this machine" if self.address is None else str(self.address)

    # -- sessions -----------------------------------------------------------------------------

    def open(self) -> Listener:
        """Open a session.

        Returns
        -------
        Listener
            What was found at the address.

        Raises
        ------
        BoardError
            If there is no server, none of the key, or none becomes free within the timeout.
        """
        if self.address is None:
            found, where = Listener("local", 1), ("", 0, "")
        else:
            found = find_server(self.address, self.timeout)
            where = (self.address.host, self.address.port, self.address.key)
        if self._process is None:
            self._process = ServiceProcess(self.worker, self.environment)
        if self.address is None:
            wait = self.timeout + _START_SECONDS
        else:  # what this machine takes to start is not held against the board
            self._call("start", wait=_START_SECONDS)
            wait = self.timeout
        self._call("open", found.kind, *where, self.lifetime, wait=wait)
        return found

    def upload(self, path: Path) -> str:
        """Send a library to the board and load it there; gives its name there."""
        wait = self.timeout + path.stat().st_size / _BYTES_PER_SECOND
        return str(self._call("upload", str(path.absolute()), wait=wait))

    def describe(self) -> BoardDescription:
        """Ask the library that was uploaded what machine it is on."""
        text, version = self._call("describe")
        return BoardDescription.parse(text, version)

    def prepare(
        self,
        functions: Sequence[str],
        weights: Sequence[tuple[str, tuple[int, ...], int]],
        results: Mapping[str, int],
        threads: int,
    ) -> None:
        """Make the functions of the library callable; see `Session.prepare`."""
        self._call("prepare", list(functions), list(weights), dict(results), threads)

    def prepare_plain(
        self,
        functions: Mapping[str, tuple[int, int, Sequence[tuple[tuple[int, ...], str]]]],
        arena_bytes: int,
        threads: int,
    ) -> None:
        """The same for plain C functions; see `Session.prepare_plain`."""
        self._call("prepare_plain", dict(functions), arena_bytes, threads)

    def run(self, function: str, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Call a function of the library on its inputs."""
        wait = self.timeout + sum(array.nbytes for array in arrays) / _BYTES_PER_SECOND
        return list(self._call("run", function, list(arrays), wait=wait))

    def time(
        self, function: str, arrays: Sequence[np.ndarray], runs: int, seconds: float
    ) -> list[float]:
        """Time so many calls, which shall take about `seconds`; gives the seconds of each."""
        wait = self.timeout + 4 * seconds
        return list(self._call("time", function, list(arrays), runs, wait=wait))

    def measure(
        self,
        kernel: str,
        arrays: Sequence[np.ndarray],
        expected: Sequence[np.ndarray],
        milliseconds: float,
        threads: int,
    ) -> list[float]:
        """Check and time a kernel of the library that was uploaded; see `Session.measure`."""
        arguments = (kernel, list(arrays), list(expected), milliseconds, threads)
        return list(self._call("measure", *arguments))

    def end_session(self) -> None:
        """End the session, and keep the process for the next one."""
        self._call("close", wait=_CLOSE_SECONDS)

    def close(self) -> None:
        """End the session, if there is one, and the process; waits for a short time only."""
        if self._process is None:
            return
        with contextlib.suppress(BoardError):
            self._call("close", wait=_CLOSE_SECONDS)
        self.abandon()

    def abandon(self) -> None:
        """Let go of the process: it ends by itself, after the call that it is in."""
        process, self._process = self._process, None
        if process is None:
            return
        ended = process.leave(_CLOSE_SECONDS if self.address is None else 0.5)
        if not ended and self.address is None:  # no server depends on it
            process.kill()

    # -- the process --------------------------------------------------------------------------

    def _call(self, operation: str, *values: object, wait: float | None = None) -> Any:
        """Ask the process; a failure of the connection or of the process ends it."""
        wait = self.timeout if wait is None else wait
        if self._process is None:
            raise self._failed(operation, "there is no session", "open one first")
        try:
            return self._process.call(operation, values, wait, self.lifetime + wait)
        except TimeoutError as error:
            self.abandon()
            raise self._failed(
                operation,
                f"no answer for {wait:g} s: it hangs, is too slow, or is in use",
                "try again with a longer --rpc-timeout; the server ends the session after "
                f"{self.lifetime:g} s",
            ) from error
        except ProcessEnded as error:
            self.abandon()
            why = f"the process that holds the connection ended: {error}"
            raise self._failed(operation, why, "run again with -v, and report this") from error
        except ProcessError as error:
            raise self._explained(operation, error.kind, str(error)) from None
        except BaseException:  # an interrupt: the board gets to the end of its call without us
            self.abandon()
            raise

    def _failed(self, operation: str, why: str, todo: str) -> BoardError:
        return BoardError(
            what=f"cannot {_DOING[operation]}", where=f"board {self.name}", why=why, todo=todo
        )

    def _explained(self, operation: str, kind: str, text: str) -> BoardError:
        """What an exception of the session means."""
        if kind == "SessionError":
            todo = "compile the library again with `ibert compile`"
            return self._failed(operation, text, todo)
        key = repr(self.address.key) if self.address and self.address.key else "none"
        for mark, why, todo in _MEANINGS:
            if mark in text:
                line = next(line for line in text.splitlines() if mark in line).strip()
                why = why.format(key=key, line=line, lifetime=f"{self.lifetime:g}")
                return self._failed(operation, why, todo)
        last = text.strip().splitlines()[-1].strip() if text.strip() else kind
        if operation == "upload" and any(mark in text for mark in _UNLOADABLE):
            if "No such file or directory" in text:  # what the loader says of a file that is there
                last = "it is for another architecture, or needs a library that the board lacks"
            return self._failed(
                operation,
                f"the board's loader refuses it: {last}",
                "compile it for the board's architecture, with the version of TVM that the board "
                "has; `ibert inspect` tells what it was compiled for",
            )
        if operation == "open" or any(mark in text for mark in _LOST):
            return self._failed(
                operation,
                f"the connection was lost ({last}): the server stopped, or the program that it ran "
                "did",
                f"look at the server's output and start it again ({SERVER_COMMAND})",
            )
        return self._failed(operation, last, "look at the server's output")
