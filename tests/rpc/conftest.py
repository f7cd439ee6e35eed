"""A board's server on this machine, a small library for it, and a small model to tune."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.commands import Outcome
from tests.processes import run_captured, without_torch
from tests.runtime.conftest import TinyModel

from .servers import Servers, running_servers


def environment() -> dict[str, str]:
    """The environment of a command line that finds this checkout, and uses one thread."""
    return {**without_torch(), "TVM_NUM_THREADS": "1"}


def ibert_process(*arguments: object) -> Outcome:
    """Run one command line in a process of its own."""
    done = run_captured(
        [sys.executable, "-m", "ibert_tvm", *map(str, arguments)], env=environment()
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


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
