"""`ibert eval --task`: the table, the document, the gate, and what is refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ibert_tvm.cli import eval_task
from ibert_tvm.tasks import TASKS, MetricResult, integer_side
from tests.encoder.small_encoders import WORDS, tiny

from .conftest import Outcome

Ibert = Callable[..., Outcome]


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
        return eval_task._within(result, 0.3)

    assert within(-0.3, (-2, 1)) and within(80.0 - 80.3, (-2, 1)) and within(1, (0, 2))
    assert not within(-0.31, (-2, 1))
    assert not within(None, (0, 0))  # without a value nothing is shown to be within


WRONG = [
    (
        ("--task", "glue"),
        "unknown task 'glue'\n  what to do: give one of " + ", ".join(TASKS),
    ),
    (
        ("--task", "rte"),
        "--data is missing\n  what to do: give the task's file or folder with --data",
    ),
    (
        ("--task", "rte", "--data", "DATA", "--max-drop", "1"),
        "--max-drop was given without --against\n"
        "  why: a drop is a difference from the float model\n"
        "  what to do: give the float model with --against",
    ),
    (
        ("--task", "rte", "--data", "DATA", "--columns", "text=a"),
        "--columns names 'text'\n"
        "  why: the task rte takes no columns\n"
        "  what to do: give only these",
    ),
    (
        ("--task", "sts", "--data", "DATA", "--columns", "text"),
        "bad value for --columns: 'text'\n"
        "  why: 'text' is not NAME=VALUE\n"
        "  what to do: give pairs with commas between them, for example --columns a=b,c=d",
    ),
    (
        ("--task", "rte", "--text", "DATA"),
        "--task was given with --text\n"
        "  why: a task brings its own texts, and where quality is lost is measured on texts\n"
        "  what to do: give one of them",
    ),
    (
        ("--data", "DATA"),
        "--data was given without --task\n  what to do: give --task, or leave --data out",
    ),
    (
        (),
        "--against is missing\n"
        "  why: without --task the integer model is compared with its float original on texts\n"
        "  what to do: give --against FLOAT_MODEL, or --task and --data",
    ),
    (
        ("--task", "classification", "--data", "DATA", "--seq-len", "17"),
        "texts cannot be cut off at 17 tokens\n"
        "  where: LIBRARY\n"
        "  why: the longest compiled length is 16\n"
        "  what to do: give a max_seq_length up to it, or compile with a larger --seq-len",
    ),
]


@pytest.mark.representatives(2)
@pytest.mark.parametrize(("words", "message"), WRONG)
def test_what_cannot_be_used(
    ibert: Ibert, classes: Path, data: Path, words: tuple[str, ...], message: str
) -> None:
    outcome = ibert("eval", classes, *(str(data) if word == "DATA" else word for word in words))
    assert (outcome.code, outcome.stdout) == (2, "")
    assert outcome.stderr == f"error: {message.replace('LIBRARY', str(classes))}\n"


def test_a_float_model_is_no_integer_one(ibert: Ibert, data: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    outcome = ibert("eval", tmp_path, "--task", "classification", "--data", data)
    assert outcome.code == 2
    assert outcome.stderr == (
        "error: a float model was given as the integer one\n"
        f"  where: {tmp_path}\n"
        "  what to do: give a NAME.ibert folder or a library, and this model with --against\n"
    )


def test_sides_of_a_library(classes: Path) -> None:
    from ibert_tvm import Encoder

    side = integer_side(Encoder(classes))
    assert side.reading("x", "logits").output == 1
