"""The processes that tests start: what they print, and their environments."""

from __future__ import annotations

import fcntl
import os
import random
import re
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

ROOT = Path(__file__).resolve().parents[1]
_HIDDEN = Path(__file__).with_name("without_torch")

PATIENCE = 300
"""Seconds after which what a test waits for is taken to be broken, however slow the machine."""

_PORTS = range(12000, 30000)
"""Below those that a system gives to outgoing connections, which may take one at any moment."""
_reserved: list[Any] = []

Found = TypeVar("Found")


def run_captured(command: Sequence[str | Path], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command to its end and keep what it prints; `options` are those of `subprocess.run`."""
    return subprocess.run(command, capture_output=True, text=True, **options)


def start_captured(command: Sequence[str | Path], **options: Any) -> subprocess.Popen[str]:
    """Start a command whose output is read later; `options` are those of `subprocess.Popen`."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, text=True, **pipes, **options)


def wait_until(condition: Callable[[], Found]) -> Found:
    """Look until a condition holds, and give what it gave."""
    end = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < end, "it did not come true"
        time.sleep(0.01)
    return found


def free_port() -> int:
    """A port of 127.0.0.1 that nothing listens on, and that no other test process is given."""
    from tests.cache import cache_folder

    for port in random.SystemRandom().sample(_PORTS, 1000):
        lock = (cache_folder() / f"port-{port}.lock").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
        except OSError:
            lock.close()
        else:
            _reserved.append(lock)  # until this process ends
            return port
    raise AssertionError("no port is free")


def without_progress(stderr: str) -> str:
    """What a process said, without the lines of progress that it adds on a slow machine."""
    return re.sub(r"^.*: \d+% done, \d+:.*\n", "", stderr, flags=re.MULTILINE)


def without_torch(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """An environment in which torch cannot be imported, as on a board.

    TVM imports torch where it is installed, which takes two of the three seconds that a process
    needs to start.

    Parameters
    ----------
    environment
        The variables otherwise; by default those of this process.
    """
    variables = dict(os.environ if environment is None else environment)
    path = [str(_HIDDEN), str(ROOT), variables.get("PYTHONPATH", "")]
    return {**variables, "PYTHONPATH": os.pathsep.join(filter(None, path))}
