"""The tiny library of the runtime's tests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ibert_tvm.common.integrity import write_manifest
from tests.runtime.conftest import TinyModel


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
