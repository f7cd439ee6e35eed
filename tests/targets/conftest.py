"""The encoder that the tests of this folder export."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.targets.encoder_library import Build


@pytest.fixture(scope="session")
def build() -> Build:
    """An encoder layer for plain x86-64."""
    from tests.targets.encoder_library import build_encoder

    return build_encoder("x86-64", hidden=30, heads=3, feed_forward=50)


@pytest.fixture(scope="session")
def library(build: Build, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """It, exported."""
    return build.export(tmp_path_factory.mktemp("library") / "model.so")
