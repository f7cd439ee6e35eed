"""Fixtures that run a command line of `ibert` in the process of the test."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from tests.snapshots import Messages


@dataclass(frozen=True)
class Outcome:
    """What one command printed and returned."""

    code: int
    stdout: str
    stderr: str

    @property
    def document(self) -> Any:
        """stdout, which must be one JSON document and nothing else."""
        assert self.stdout, self.stderr
        return json.loads(self.stdout)

    @property
    def error(self) -> Any:
        """The JSON error object, which must be all there is on stderr."""
        assert self.stdout == ""
        return json.loads(self.stderr)["error"]


Ibert = Callable[..., Outcome]
Refused = Callable[..., None]


@pytest.fixture
def ibert(capfd: pytest.CaptureFixture[str]) -> Ibert:
    """Run one command line in this process, without the lines of progress of a slow machine."""
    from ibert_tvm.cli import main
    from ibert_tvm.progress import without_lines

    def call(*arguments: object) -> Outcome:
        gc.collect()  # TVM warns on stderr about what other tests left unfinished
        gc.freeze()  # and what is left the next collection need not look at again: 0.1 s a call
        capfd.readouterr()
        with without_lines():
            code = main([str(argument) for argument in arguments])
        captured = capfd.readouterr()
        return Outcome(code, captured.out, captured.err)

    return call


@pytest.fixture
def ibert_command(ibert: Ibert) -> Ibert:
    """`ibert`, for modules in which that is the package."""
    return ibert


@pytest.fixture
def refused(ibert: Ibert, messages: Messages) -> Refused:
    """Run a command line that is refused: ``errors.txt`` has its exit code and its message."""

    def call(*arguments: object, **parts: object) -> None:
        outcome = ibert(*arguments)
        assert outcome.stdout == ""
        assert outcome.code != 0
        messages.check(f"exit code {outcome.code}\n{outcome.stderr.rstrip()}", **parts)

    return call
