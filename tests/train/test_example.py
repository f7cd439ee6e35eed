"""The example that tunes with integers, on a small model and few sentences."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from tests.documents.small_model import small_model
from tests.processes import run_captured

EXAMPLE = Path(__file__).parents[2] / "examples" / "finetune.py"


@pytest.mark.record
def test_it_tunes_and_compares_both_models_with_float(tmp_path: Path) -> None:
    folder = tmp_path / "finetune"
    words = ["--model", small_model(), "--folder", folder, "--samples", 48, "--epochs", 1]
    done = run_captured([sys.executable, EXAMPLE, *map(str, words)])
    assert done.returncode == 0, done.stderr
    sets = {
        name: (folder / f"{name}.tsv").read_text(encoding="utf-8").splitlines()[1:]
        for name in ("train", "dev", "test")
    }
    assert len({line for lines in sets.values() for line in lines}) == sum(map(len, sets.values()))
    for lines in sets.values():
        assert {line.split("\t")[1] for line in lines} == {"class", "function", "module"}
    number = r"[-+]?\d+\.\d\d"
    rows = re.findall(
        rf"(accuracy|macro F1): float {number}, integers (calibrated|tuned) {number} "
        rf"\({number}: {number} to {number}\)",
        done.stdout,
    )
    assert rows == [(m, of) for of in ("calibrated", "tuned") for m in ("accuracy", "macro F1")]
    card = json.loads((folder / "tuned" / "config.json").read_text(encoding="utf-8"))
    assert card["label2id"] == {"class": 0, "function": 1, "module": 2}


def test_it_removes_nothing_that_it_did_not_make(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_text("", encoding="utf-8")
    words = [sys.executable, EXAMPLE, "--folder", tmp_path]
    done = run_captured(words)
    assert done.returncode == 2 and "is not empty" in done.stderr
    assert kept.exists()
