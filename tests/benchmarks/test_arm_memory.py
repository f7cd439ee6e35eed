"""The published memory of microcontrollers is that of the packages as they are made now."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.arm.memory import measure
from benchmarks.arm.models import SPECS, quantise
from benchmarks.models import Cell

ROOT = Path(__file__).parents[2]


def _published(model: str, target: str, shape: str) -> dict[str, Any]:
    text = (ROOT / "benchmarks" / "results" / "arm-memory.json").read_text(encoding="utf-8")
    given = (model, target, shape)
    (row,) = (
        row
        for row in json.loads(text)["packages"]
        if (row["model"], row["target"], row["shape"]) == given
    )
    return row


@pytest.mark.slow
def test_the_published_figures_are_those_of_now(tmp_path: Path) -> None:
    published = _published("bert-tiny", "cortex-m4", "1x32")
    found = measure(quantise(SPECS["bert-tiny"], tmp_path), Cell(1, 32), "cortex-m4")
    assert {key: found[key] for key in ("weights", "arena")} == {
        key: published[key] for key in ("weights", "arena")
    }
    # Code and stack depend a little on the C compiler, and code on the values of scales.
    assert found["code"] == pytest.approx(published["code"], rel=0.05)
    assert found["stack"] == pytest.approx(published["stack"], rel=0.25)
