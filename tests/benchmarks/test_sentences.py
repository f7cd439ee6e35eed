"""The report of strings to vectors, and what is compared in it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.sentences import _add_earlier, _agreement, _markdown, main
from tests.benchmarks.documents import document
from tests.snapshots import Messages

SETTINGS = {
    "model": "m", "held-out": 9, "documentation": 90, "rounds": 2, "passes": 1, "batch_size": 32
}  # fmt: skip


def row(peer: str, speed: float, milliseconds: float) -> dict[str, object]:
    return {
        "peer": peer,
        "threads": 1,
        "texts": "held-out",
        "texts_per_second": speed,
        "processor_ms_per_text": milliseconds,
        "cosine_mean": 0.99,
        "cosine_min": 0.95,
        "versions": {"torch": "2"},
        "other_load_cores": 0.5,
    }


def test_the_report_says_how_far_ahead_and_what_was_left_out(messages: Messages) -> None:
    rows = [
        row("torch", 100.0, 12.0),
        row("ibert", 300.0, 3.0),
        row("ibert", 400.0, 2.0) | {"texts": "documentation", "threads": 2},
    ]
    skipped = {"onnx": "--backends-python was not given"}
    messages.check(_markdown(document(*rows, settings=SETTINGS, skipped=skipped)))


def test_vectors_are_compared_by_their_direction() -> None:
    reference = np.array([[1.0, 0.0], [3.0, 4.0]])
    other = np.array([[2.0, 0.0], [4.0, 3.0]])
    assert _agreement(reference, other) == {"cosine_mean": 0.98, "cosine_min": 0.96}


def test_a_peer_that_there_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--peers", "ibert,other"])
    assert "'other' is not valid; known: ibert, torch, onnx" in capsys.readouterr().err


def test_rows_of_an_earlier_run_are_kept_unless_they_are_measured_again(tmp_path: Path) -> None:
    file = tmp_path / "sentences.json"
    earlier = document(row("ibert", 1.0, 1.0), row("torch", 2.0, 2.0), settings=SETTINGS)
    file.write_text(json.dumps(earlier), encoding="utf-8")
    result = {**earlier, "rows": [row("ibert", 3.0, 3.0)]}
    _add_earlier(result, file)
    assert [(r["peer"], r["texts_per_second"]) for r in result["rows"]] == [
        ("ibert", 3.0),
        ("torch", 2.0),
    ]
    result = {**earlier, "settings": {**SETTINGS, "rounds": 9}, "rows": []}
    _add_earlier(result, file)
    assert result["rows"] == []
