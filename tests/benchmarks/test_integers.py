"""Fine-tuning the tasks' models with integers, and distillation, on a small model."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from tests.documents.small_model import small_model

SENTENCES = ("a parser of files", "a game of cards", "reads a file", "plays a game")


@pytest.mark.slow
def test_a_task_s_integer_model_lies_beside_the_float_one(tmp_path: Path) -> None:
    import ibert_tvm
    from benchmarks.tasks.integers import finetune_integers
    from ibert_tvm.train.settings import FinetuneSettings

    data, models = tmp_path / "data" / "sections", tmp_path / "models"
    data.mkdir(parents=True)
    models.mkdir()
    (models / "sections").symlink_to(small_model())
    rows = [f"{text} {number}\t{'xy'[number % 2]}" for number in range(6) for text in SENTENCES]
    for name, part in (("train", rows[:18]), ("dev", rows[18:])):
        lines = ["text\tlabel", *part]
        (data / f"{name}.tsv").write_text("\n".join(lines), encoding="utf-8")
    settings = FinetuneSettings(float_epochs=0, epochs=1, batch_size=8, seq_len=16)
    found = finetune_integers("sections", data.parent, models, settings, samples=10)
    assert (found["examples"], found["dev_examples"], found["labels"]) == (10, 6, ("x", "y"))
    stage = found["integer_stage"]
    assert stage["steps"] == 2
    assert stage["best"] == max(stage["before"], stage["history"][0]["score"])
    document = json.loads((models / "sections-integer.json").read_text(encoding="utf-8"))
    assert document["integer_stage"] == stage and document["settings"] == settings.to_json()
    info = ibert_tvm.QuantizedModel.load(models / "sections-integer.ibert").info
    assert info.id2label == {0: "x", 1: "y"}


@pytest.mark.slow
def test_distillation_keeps_the_better_and_measures_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from benchmarks import distillation
    from ibert_tvm.train import prepare

    lines = [f"{text} number {number}" for number in range(60) for text in SENTENCES]
    monkeypatch.setattr(distillation, "documentation", lambda: lines)
    found = distillation.training_texts(40, 3)
    assert found == distillation.training_texts(40, 3) != distillation.training_texts(40, 4)
    assert all(any(text in line for line in lines) for text in found)
    start = tmp_path / "start"
    prepare(small_model(), preset="paper", calibration=lines[:8]).save(start)
    seed = distillation.tune(start, small_model(), _options(learning_rate=1e-3), 3)
    assert seed["steps"] == 10 and len(seed["history"]) == 2
    assert seed["before"].keys() == seed["after"].keys() == {*distillation.SETS, "all"}
    assert seed["best_step"] in (5, 10)
    assert seed["after"] != seed["before"]
    same = distillation.tune(start, small_model(), _options(learning_rate=0.0), 3)
    assert same["best_step"] == 0 and same["after"] == same["before"] == seed["before"]


def _options(**changes: Any) -> argparse.Namespace:
    given = {
        "texts": 40,
        "epochs": 2,
        "batch": 8,
        "train": ["all", "scales"],
        "scale_learning_rate": 10 * changes["learning_rate"],
        "weighted": False,
        **changes,
    }
    return argparse.Namespace(**given)
