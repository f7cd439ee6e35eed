"""The processes that tests start: what they print, and their environments."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
_HIDDEN = Path(__file__).with_name("without_torch")


def run_captured(command: Sequence[str | Path], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command to its end and keep what it prints; `options` are those of `subprocess.run`."""
    return subprocess.run(command, capture_output=True, text=True, **options)


def start_captured(command: Sequence[str | Path], **options: Any) -> subprocess.Popen[str]:
    """Start a command whose output is read later; `options` are those of `subprocess.Popen`."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, text=True, **pipes, **options)


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
