"""Checkpoints that several tests share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import ibert_tvm as ibert
from ibert_tvm.frontend import CanonicalModel
from tests.ibert_checkpoint.checkpoints import make_model, save


@dataclass
class Saved:
    """A transformers model, its folder, and the import."""

    source: Any
    folder: Path
    model: CanonicalModel


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """``checkpoint(head, **changes)``: each combination is made once."""
    made: dict[str, Saved] = {}

    def make(head: str = "none", **changes: Any) -> Saved:
        key = repr((head, sorted(changes.items())))
        if key not in made:
            source = make_model(head, **changes)
            folder = save(source, tmp_path_factory.mktemp("ibert"))
            made[key] = Saved(source, folder, ibert.load(folder, head=head, verify=False))
        return made[key]

    return make
