"""`ibert eval --task`: the table, the document, the gate, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from ibert_tvm.tasks import TASKS, MetricResult, integer_side
from tests.commands import Ibert, Refused
from tests.encoder.small_encoders import WORDS, tiny

Ibert = Ibert


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny("classes").build(tmp_path_factory.mktemp("classes") / "model.so")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    generator = np.random.default_rng(0)
    rows = [f"{' '.join(generator.choice(WORDS, 3))}\tcalm" for _ in range(20)]
    (tmp_path / "data.tsv").write_text("text\tlabel\n" + "\n".join(rows))
    return tmp_path / "data.tsv"


@pytest.mark.parametrize("command", ["eval", "quantize", "finetune"])
def test_the_help_names_every_task(ibert: Ibert, command: str) -> None:
    shown = re.sub(r"[\s│]+", " ", ibert(command, "--help").stdout)
    assert f"The tasks: {', '.join(TASKS)}." in shown


@pytest.mark.slow
def test_one_model_alone(ibert: Ibert, classes: Path, data: Path) -> None:
    outcome = ibert("eval", classes, "--task", "classification", "--data", data)
    assert outcome.code == 0, outcome.stderr
    lines = outcome.stdout.splitlines()
    assert lines[0] == "task classification, 20 samples, up to 16 tokens"
    assert lines[1].split() == ["metric", "integer"]
    document = ibert(
        "eval", classes, "--task", "classification", "--data", data, "--limit", "9", "--json"
    ).document
    assert document.pop("seconds") > 0
    assert document["samples"] == 9 and document["against"] is None
    assert [metric["name"] for metric in document["metrics"]] == ["accuracy", "macro F1"]


def gate(ibert: Ibert, monkeypatch: pytest.MonkeyPatch, classes: Path, data: Path, drop: str):
    """Beside a float model that is always right (its loading is replaced)."""
    import ibert_tvm.frontend
    import ibert_tvm.tasks

    def right(_reference, integers):
        def run(tokens):
            return [np.tile(np.float32([1, 0, 0, 0]), (len(tokens.input_ids), 1))] * 2

        return ibert_tvm.tasks.Side(integers.info, integers.tokenizer, 16, run)

    monkeypatch.setattr(ibert_tvm.frontend, "load", lambda *_args, **_options: None)
    monkeypatch.setattr(ibert_tvm.tasks, "float_side", right)
    words = ("--task", "classification", "--data", data, "--against", "float", "--max-drop", drop)
    return ibert("eval", classes, *words), ibert("eval", classes, *words, "--json")


def test_a_drop_that_is_too_large_ends_with_5(
    ibert: Ibert, monkeypatch: pytest.MonkeyPatch, classes: Path, data: Path
) -> None:
    shown, document = gate(ibert, monkeypatch, classes, data, "0.5")
    assert shown.code == document.code == 5
    lines = shown.stdout.splitlines()
    assert lines[1].split() == ["metric", "float", "integer", "difference", "95%", "interval"]
    assert lines[2].split()[:2] == ["accuracy", "100.00"]
    assert lines[-1] == "accuracy, macro F1: more than 0.5 points below the float model"
    assert max(map(len, lines)) <= 80
    assert document.document["too_low"] == ["accuracy", "macro F1"]
    accuracy = document.document["metrics"][0]
    assert accuracy["difference"] == accuracy["integer"] - 100 < -0.5
    assert accuracy["interval"][0] <= accuracy["difference"] <= accuracy["interval"][1]


def test_a_drop_that_is_allowed_ends_with_0(
    ibert: Ibert, monkeypatch: pytest.MonkeyPatch, classes: Path, data: Path
) -> None:
    shown, document = gate(ibert, monkeypatch, classes, data, "100")
    assert shown.code == document.code == 0
    last = shown.stdout.splitlines()[-1]
    assert last == "no metric is more than 100 points below the float model"


def test_the_gate_is_on_the_difference() -> None:
    def within(difference: float | None, interval: tuple[float, float]) -> bool:
        result = MetricResult("accuracy", 80.0, 80.3, difference, interval)
        return result.within(0.3)

    assert within(-0.3, (-2, 1)) and within(80.0 - 80.3, (-2, 1)) and within(1, (0, 2))
    assert not within(-0.31, (-2, 1))
    assert not within(None, (0, 0))  # without a value nothing is shown to be within


@pytest.mark.parametrize(
    "words",
    [
        "--task glue",
        "--task rte",
        "--task rte --data DATA --max-drop 1",
        "--task rte --data DATA --columns text=a",
        "--task sts --data DATA --columns text",
        "--task rte --text DATA",
        "--data DATA",
        "",
        "--task classification --data DATA --seq-len 17",
    ],
)
def test_what_cannot_be_used(refused: Refused, classes: Path, data: Path, words: str) -> None:
    given = (data if word == "DATA" else word for word in words.split())
    refused("eval", classes, *given, tasks=", ".join(TASKS))


def test_a_float_model_is_no_integer_one(refused: Refused, data: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    refused("eval", tmp_path, "--task", "classification", "--data", data)


def test_sides_of_a_library(classes: Path) -> None:
    from ibert_tvm import Encoder

    side = integer_side(Encoder(classes))
    assert side.reading("x", "logits").output == 1
