"""A board's server on this machine, a small library for it, and a small model to tune."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.processes import without_torch
from tests.runtime.conftest import TinyModel

from .servers import Servers, running_servers


@dataclass(frozen=True)
class Outcome:
    """What one command printed and returned."""

    code: int
    stdout: str
    stderr: str

    @property
    def document(self) -> Any:
        """stdout, which must be one JSON document."""
        assert self.code == 0, self.stderr
        return json.loads(self.stdout)


Ibert = Callable[..., Outcome]


def environment() -> dict[str, str]:
    """The environment of a command line that finds this checkout, and uses one thread."""
    return {**without_torch(), "TVM_NUM_THREADS": "1"}


def ibert_process(*arguments: object) -> Outcome:
    """Run one command line in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "ibert_tvm", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env=environment(),
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def ibert(capfd: pytest.CaptureFixture[str]) -> Ibert:
    """Run one command line in this process."""
    from ibert_tvm.cli import main

    def call(*arguments: object) -> Outcome:
        capfd.readouterr()
        code = main([str(argument) for argument in arguments])
        captured = capfd.readouterr()
        return Outcome(code, captured.out, captured.err)

    return call


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    """A tracker, and a server with the key ``x86``."""
    with running_servers("x86") as running:
        yield running


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return TinyModel().build(tmp_path_factory.mktemp("rpc") / "model.so")


@pytest.fixture(scope="session")
def artefact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with one matrix product."""
    from .small_model import small_model

    folder = tmp_path_factory.mktemp("model") / "small.ibert"
    small_model().save(folder)
    return folder
