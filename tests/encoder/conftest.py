"""Encoders of the tiny models, each built once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ibert_tvm import Encoder
from tests.encoder.small_encoders import tiny


@pytest.fixture(scope="session")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Encoder]:
    """An encoder with one of `small_encoders.HEADS`."""
    made: dict[str, Encoder] = {}

    def make(kind: str, **info: Any) -> Encoder:
        key = repr((kind, sorted(info.items())))
        if key not in made:
            made[key] = Encoder(tiny(kind, **info).build(tmp_path_factory.mktemp(kind) / "tiny.so"))
        return made[key]

    return make


@pytest.fixture
def library(encoder: Callable[..., Encoder]) -> Path:
    return encoder("embedding").library.metadata.path
