"""Running commands in this process, and the tiny library of the runtime's tests."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.conftest import TinyModel


@dataclass(frozen=True)
class Outcome:
    """What one command printed and returned."""

    code: int
    stdout: str
    stderr: str

    @property
    def document(self) -> Any:
        """stdout, which must be one JSON document and nothing else."""
        return json.loads(self.stdout)

    @property
    def error(self) -> Any:
        """The JSON error object, which must be all there is on stderr."""
        assert self.stdout == ""
        return json.loads(self.stderr)["error"]


@pytest.fixture
def ibert(capfd: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Run one command line in this process."""
    from ibert_tvm.cli import main

    def call(*arguments: object) -> Outcome:
        gc.collect()  # TVM warns on stderr about what other tests left unfinished
        gc.freeze()  # and what is left the next collection need not look at again: 0.1 s a call
        capfd.readouterr()
        code = main([str(argument) for argument in arguments])
        captured = capfd.readouterr()
        return Outcome(code, captured.out, captured.err)

    return call


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return TinyModel().build(tmp_path_factory.mktemp("cli") / "model.so")
