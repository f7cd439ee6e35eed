"""A tracker and a board's server on this machine, for the time of some tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO

from ibert_tvm.targets.rpc import Address, BoardError, find_server
from tests.processes import PATIENCE, free_port, without_torch

HOST = "127.0.0.1"


@dataclass(frozen=True)
class Servers:
    """Where they listen."""

    key: str
    server_port: int
    tracker_port: int

    @property
    def tracker(self) -> Address:
        """The tracker, with the board's key."""
        return Address(HOST, self.tracker_port, self.key)

    @property
    def rpc(self) -> tuple[str, ...]:
        """Options of the command line that reach the board through the tracker."""
        return ("--rpc", f"{HOST}:{self.tracker_port}", "--key", self.key)


@contextmanager
def started(*command: str, environment: Mapping[str, str] | None = None) -> Iterator[IO[bytes]]:
    """Run a server for the duration of the block, and end it with everything that it started."""
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command,
            env={**without_torch(), **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            yield log
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _output(log: IO[bytes]) -> str:
    log.seek(0)
    return log.read().decode("utf-8", "replace")


def wait_for(address: Address, log: IO[bytes]) -> None:
    """Wait until a server answers at an address, or a tracker has a board of its key."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            find_server(address, 60.0)
            return
        except BoardError as error:
            if time.monotonic() > end:
                raise AssertionError(f"{error}\n\n{_output(log)}") from error
        time.sleep(0.2)


@contextmanager
def running_tracker() -> Iterator[int]:
    """Run TVM's tracker; gives its port."""
    port = free_port()
    command = ["-m", "tvm.exec.rpc_tracker", "--host", HOST, "--port", str(port)]
    with started(sys.executable, *command, "--port-end", str(port + 1)):
        yield port


@contextmanager
def running_servers(
    key: str, python: str = sys.executable, environment: Mapping[str, str] | None = None
) -> Iterator[Servers]:
    """Run TVM's tracker here, and its server with a Python that may be a board's."""
    with running_tracker() as tracker_port:
        port = free_port()
        command = ["-m", "tvm.exec.rpc_server", "--host", HOST, "--port", str(port)]
        command += ["--port-end", str(port + 1), "--key", key]
        command += ["--tracker", f"{HOST}:{tracker_port}"]
        with started(python, *command, environment=environment) as log:
            wait_for(Address(HOST, tracker_port, key), log)
            yield Servers(key, port, tracker_port)


def free_boards(servers: Servers) -> int:
    """Boards of the key that serve nobody."""
    from tvm import rpc

    tracker = rpc.connect_tracker(HOST, servers.tracker_port)
    try:
        return int(tracker.summary()["queue_info"][servers.key]["free"])
    finally:
        tracker.close()
