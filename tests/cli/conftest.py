"""Running commands in this process, and the tiny library of the runtime's tests."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ibert_tvm.common.integrity import write_manifest
from tests.runtime.conftest import TinyModel
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


Refused = Callable[..., None]


@pytest.fixture
def refused(ibert: Callable[..., Outcome], messages: Messages) -> Refused:
    """Run a command line that is refused: ``errors.txt`` has its exit code and its message."""

    def call(*arguments: object, **parts: object) -> None:
        outcome = ibert(*arguments)
        assert outcome.stdout == ""
        assert outcome.code != 0
        messages.check(f"exit code {outcome.code}\n{outcome.stderr.rstrip()}", **parts)

    return call


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return TinyModel().build(tmp_path_factory.mktemp("cli") / "model.so")


@pytest.fixture
def artefact(tmp_path: Path) -> Path:
    """A folder with the document of an artefact, enough for what is checked first."""
    folder = tmp_path / "tiny.ibert"
    folder.mkdir()
    document = {
        "schema_version": 1,
        "preset": "accurate",
        "outputs": [{"name": name, "scale": 0.5} for name in ("hidden", "embedding")],
        "info": TinyModel().info.to_json(),
    }
    (folder / "quantization.json").write_text(json.dumps(document))
    (folder / "model.json").write_text("{}")
    (folder / "params.safetensors").write_bytes(b"")
    write_manifest(folder)
    return folder
