"""Running other programs: without input, with their output as text, and to their end."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from ibert_tvm.common.errors import TargetError

TIMED_OUT, NOT_STARTED = 124, 126
_SHOWN = 2000


def run(
    command: Sequence[str],
    folder: Path | None = None,
    seconds: float | None = None,
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a program.

    Parameters
    ----------
    command
        Program and arguments.
    folder
        Working directory.
    seconds
        When to give up.
    environment
        Its variables; by default those of this process.

    Returns
    -------
    subprocess.CompletedProcess
        One that was stopped for its time has the return code `TIMED_OUT`, one that could not be
        started `NOT_STARTED`.
    """
    words = list(command)
    try:
        return subprocess.run(
            words,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        why = f"it was stopped after {seconds:.0f} s"
        return subprocess.CompletedProcess(words, TIMED_OUT, "", why)
    except OSError as error:
        return subprocess.CompletedProcess(words, NOT_STARTED, "", error.strerror or str(error))


def output_of(
    command: Sequence[str],
    *,
    what: str,
    where: str,
    todo: str,
    folder: Path | None = None,
    error: type[TargetError] = TargetError,
) -> str:
    """Run a program that must succeed.

    Parameters
    ----------
    command
        Program and arguments.
    what, where, todo
        Parts of the error.
    folder
        Working directory.
    error
        Class of the error.

    Returns
    -------
    str
        What it printed.

    Raises
    ------
    TargetError
        With the program's own words, if it ends with another status than 0.
    """
    done = run(command, folder)
    if done.returncode != 0:
        why = (done.stderr or done.stdout).strip()[-_SHOWN:] or f"exit status {done.returncode}"
        raise error(what=what, where=where, why=why, todo=todo)
    return done.stdout
