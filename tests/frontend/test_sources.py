"""What is taken for something to import: one predicate for every command."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ibert_tvm.frontend.folder_files import is_source


def folder(path: Path, *names: str) -> Path:
    path.mkdir(parents=True)
    for name in names:
        (path / name).write_text("{}")
    return path


def hub_entry(path: Path) -> Path:
    folder(path / "snapshots" / "abc", "config.json")
    return path


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda p: folder(p / "m", "config.json"), True),
        (lambda p: folder(p / "m", "modules.json"), True),
        (lambda p: hub_entry(p / "models--x--y"), True),
        (lambda p: folder(p / "m.ibert", "config.json", "quantization.json"), False),
        (lambda p: folder(p / "m", "vocab.txt"), False),
        (lambda p: p / "model.ONNX", True),
        (lambda p: p / "model.pt2", True),
        (lambda p: p / "model.so", False),
    ],
)
def test_what_is_a_source(tmp_path: Path, make: Callable[[Path], Path], expected: bool) -> None:
    assert is_source(make(tmp_path)) is expected
