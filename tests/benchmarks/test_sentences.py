"""The report of strings to vectors, and what is compared in it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.machine import describe_machine, describe_software
from benchmarks.sentences import PEERS, _add_earlier, _agreement, _markdown, main

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


def test_the_report_says_how_far_ahead_and_what_was_left_out() -> None:
    result = {
        "machine": describe_machine(),
        "software": describe_software(),
        "settings": SETTINGS,
        "rows": [
            row("torch", 100.0, 12.0),
            row("ibert", 300.0, 3.0),
            row("ibert", 400.0, 2.0) | {"texts": "documentation", "threads": 2},
        ],
        "skipped": {"onnx": "--backends-python was not given"},
    }
    text = _markdown(result)
    assert "| ibert_tvm, `Encoder` | 300 | 1.00 | 3.00 | 1.00 | 0.9900, 0.9500 |" in text
    assert f"| {PEERS['torch'].title} | 100 | 3.00 | 12.00 | 4.00 | 0.9900, 0.9500 |" in text
    assert text.index("## The held-out texts, 1 thread") < text.index(
        "## Lines of documentation, 2 threads"
    )
    assert "kept 0.5 cores busy" in text
    assert "- `onnx`: --backends-python was not given" in text


def test_vectors_are_compared_by_their_direction() -> None:
    reference = np.array([[1.0, 0.0], [3.0, 4.0]])
    other = np.array([[2.0, 0.0], [4.0, 3.0]])
    assert _agreement(reference, other) == {"cosine_mean": 0.98, "cosine_min": 0.96}


def test_a_peer_that_there_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--peers", "ibert,other"])
    assert "'other' is not valid; known: ibert, torch, onnx" in capsys.readouterr().err


def test_rows_of_an_earlier_run_are_kept_unless_they_are_measured_again(tmp_path: Path) -> None:
    document = tmp_path / "sentences.json"
    earlier = {
        "machine": describe_machine(),
        "settings": SETTINGS,
        "rows": [row("ibert", 1.0, 1.0), row("torch", 2.0, 2.0)],
    }
    document.write_text(json.dumps(earlier), encoding="utf-8")
    result = {**earlier, "rows": [row("ibert", 3.0, 3.0)]}
    _add_earlier(result, document)
    assert [(r["peer"], r["texts_per_second"]) for r in result["rows"]] == [
        ("ibert", 3.0),
        ("torch", 2.0),
    ]
    result = {**earlier, "settings": {**SETTINGS, "rounds": 9}, "rows": []}
    _add_earlier(result, document)
    assert result["rows"] == []
