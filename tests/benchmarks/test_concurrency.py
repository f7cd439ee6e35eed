"""Callers of one library: what is counted, in which way they call, and the report."""

from __future__ import annotations

import argparse
import json
import threading

import pytest

from benchmarks import concurrency
from benchmarks.concurrency import take_turn
from tests.benchmarks.documents import document
from tests.processes import PATIENCE


class _Library:
    """Counts calls, and how many ran at the same time at most; so many meet at the beginning."""

    def __init__(self, together: int) -> None:
        self.calls = self.most = self.now = 0
        self.lock = threading.Lock()
        self.met = threading.Barrier(together)
        self.contexts = [None] * together

    def __enter__(self) -> _Library:
        return self

    def __exit__(self, *_exception: object) -> None:
        pass

    def run(self, dequantize: bool, **inputs: object) -> None:
        assert not dequantize
        assert list(inputs) == ["input_ids", "attention_mask"]
        with self.lock:
            self.calls += 1
            early = self.calls <= self.met.parties
            self.now += 1
            self.most = max(self.most, self.now)
        if early:
            self.met.wait(PATIENCE)
        with self.lock:
            self.now -= 1


_INPUTS = {"input_ids": [[1]], "attention_mask": [[1]]}


def test_callers_call_at_the_same_time_and_every_call_is_counted():
    library = _Library(together=3)
    turn = take_turn(library, _INPUTS, 3, "together", 0.01)
    assert library.most == 3
    assert turn.calls == len(turn.times_ms) == library.calls >= 3
    assert turn.per_second == turn.calls / turn.seconds


def test_callers_in_turns_never_meet():
    library = _Library(together=1)
    turn = take_turn(library, _INPUTS, 3, "in turns", 0.01)
    assert library.most == 1
    assert turn.calls == library.calls >= 1


def test_the_report_compares_both_ways(monkeypatch, tmp_path, capsys, messages):
    turns = {
        "together": concurrency.Turn(30, 1.0, (1.0, 2.0, 3.0), 2.5, 0.5),
        "in turns": concurrency.Turn(20, 1.0, (4.0, 5.0, 6.0), 3.0, 0.1),
    }
    monkeypatch.setattr(concurrency, "take_turn", lambda *given: turns[given[3]])
    monkeypatch.setattr(
        concurrency, "new_result", lambda _peers, settings: document(settings=settings)
    )
    monkeypatch.setattr(
        "ibert_tvm.runtime.load_library", lambda *_given, **_named: _Library(together=2)
    )
    output = tmp_path / "result"
    words = ["--library", "model.so", "--cells", "1x32", "--callers", "2", "--threads", "2"]
    assert concurrency.main([*words, "--rounds", "3", "--output", str(output)]) == 0
    files = [str(output) + end for end in (".json", ".md")]
    assert json.loads(capsys.readouterr().out) == {"written": files}
    rows = json.loads(output.with_suffix(".json").read_text("utf-8"))["rows"]
    assert [row["way"] for row in rows] == ["together", "in turns"]
    assert rows[0] == {
        **{"cell": "1x32", "threads": 2, "callers": 2, "way": "together", "contexts": 2},
        **{"per_second": 30.0, "best_per_second": 30.0, "median_ms": 2.0, "min_ms": 1.0},
        **{"p90_ms": 3.0, "processor_ms": 2.5, "other_cores": 0.5, "calls": 90},
    }
    messages.check(output.with_suffix(".md").read_text("utf-8"))


def test_numbers_of_callers_are_positive():
    assert concurrency._numbers("1,2,4") == [1, 2, 4]
    with pytest.raises(argparse.ArgumentTypeError) as caught:
        concurrency._numbers("1,0")
    assert str(caught.value) == "'1,0' is not a list of positive numbers"
