"""How a run goes: turns, repetitions, resuming, failures."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress

import pytest

from benchmarks import measure
from benchmarks.effort import Effort, Turn, estimate_seconds
from benchmarks.models import MODELS, Cell
from benchmarks.process import WorkerError, _reason, ending_with_this
from benchmarks.store import StoreError, add_limits, continue_result, is_measured, load, merge, save
from tests.benchmarks.documents import document, row
from tests.processes import PATIENCE, ROOT


def test_long_runs_are_not_repeated_within_a_turn():
    effort = Effort(rounds=5, seconds=0.3, warm_up=0.1, least=3, long_ms=200, rare_ms=600)
    assert effort.turn(199.0) == Turn(0.3, 0.1, 3)
    assert effort.turn(200.0) == Turn(0.3, 0.0, 1)
    assert [effort.joins(number, 599.0) for number in range(5)] == [True] * 5
    assert [effort.joins(number, 600.0) for number in range(5)] == [True, False, True, False, True]


def test_estimates():
    effort = Effort(rounds=5, seconds=0.3, warm_up=0.1, least=3)
    assert effort.seconds_of(1.0) == pytest.approx(5 * (0.1 + 0.3 + 0.001))
    assert effort.seconds_of(150.0) == pytest.approx(5 * (0.1 + 0.075 + 0.45))
    assert effort.seconds_of(2000.0) == pytest.approx(3 * 2.0)
    spec, cell = MODELS["minilm"], Cell.parse("1x128")
    ceilings = {("int8", 1): spec.macs(cell) * 1e-9 / 0.6}  # a run of one second
    seconds = estimate_seconds(effort, [(spec, cell, 1)], ["int8"], ceilings)
    assert seconds == pytest.approx(1.5 + 2 + 3 * 1.0)


@pytest.mark.parametrize("bad", [{"rounds": 0}, {"least": 0}, {"seconds": -0.1}, {"warm_up": -1.0}])
def test_settings_that_make_no_sense(bad, messages):
    with messages.raises(ValueError):
        Effort(**bad)


class _FakeWorker:
    """Answers without a process; its behaviour follows from the peer's name."""

    log: list[str]

    def __init__(self, spec, peer, cell, threads, cache):
        if peer == "broken":
            raise WorkerError("ended: no such model")
        self.peer = peer
        self.calls = 0
        estimate = 900.0 if peer == "slow" else 2.0
        self.hello = {"load_seconds": 0.5, "estimate_ms": estimate, "embedding": [1.0, 2.0]}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.log.append(f"close {self.peer}")

    def turn(self, seconds, warm_up, least):
        self.calls += 1
        if self.peer == "crashing" and self.calls == 2:
            raise WorkerError("ended: killed")
        self.log.append(self.peer)
        times = [3.0, 1.0, 2.0] if self.peer == "quick" else [float(self.calls)]
        return {"times_ms": times, "processor_seconds": 0.0, "peak_mib": 10.0}


def _measured(monkeypatch, peers, rounds):
    log: list[str] = []
    monkeypatch.setattr(measure, "Worker", _FakeWorker)
    monkeypatch.setattr(_FakeWorker, "log", log, raising=False)
    effort = Effort(rounds=rounds)
    rows = measure.measure_cell(MODELS["minilm"], Cell.parse("1x32"), 1, peers, effort, None)
    return {r["peer"]: r for r in rows}, log


def test_peers_take_turns_in_alternating_order(monkeypatch):
    rows, log = _measured(monkeypatch, ["quick", "slow", "pytorch-fp32"], 3)
    assert log == [
        *("quick", "slow", "pytorch-fp32"),
        *("pytorch-fp32", "quick"),  # backwards, without the slow one
        *("quick", "slow", "pytorch-fp32"),
        *("close pytorch-fp32", "close slow", "close quick"),
    ]
    assert (rows["quick"]["median_ms"], rows["quick"]["min_ms"]) == (2.0, 1.0)
    assert (rows["quick"]["runs"], rows["quick"]["round_medians_ms"]) == (9, [2.0, 2.0, 2.0])
    assert (rows["slow"]["median_ms"], rows["slow"]["runs"]) == (1.5, 2)
    assert rows["quick"]["gmacs"] == round(344457216 / 2.0 * 1e-6, 1)
    assert rows["quick"]["cosine_to_pytorch"] == 1.0
    assert "embedding" not in rows["quick"]


def test_a_peer_that_fails_keeps_nobody_else_from_being_measured(monkeypatch):
    rows, _ = _measured(monkeypatch, ["broken", "crashing", "quick"], 3)
    assert rows["broken"]["failed"] == "ended: no such model"
    assert rows["crashing"]["failed"] == "ended: killed"
    assert "median_ms" not in rows["crashing"]
    assert "rounds" not in rows["crashing"]
    assert rows["quick"]["median_ms"] == 2.0


def test_a_run_is_continued_but_not_of_another_compiler(tmp_path, messages):
    path = tmp_path / "cpu.json"
    assert continue_result(document(), path) == 0  # nothing there yet
    failed = {"model": "minilm", "cell": "8x32", "threads": 1, "peer": "ibert", "failed": "x"}
    earlier = document(row("ibert", 4.0), row("openvino-int8", 5.0), failed)
    earlier["skipped"]["ibert on minilm 8x32"] = "building failed"
    save(earlier, path)
    result = document()
    assert continue_result(result, path) == 2
    assert is_measured(result, "minilm", Cell.parse("1x128"), 1, ["ibert", "openvino-int8"])
    assert not is_measured(result, "minilm", Cell.parse("1x128"), 2, ["ibert"])
    assert not is_measured(result, "minilm", Cell.parse("1x128"), 1, ["ibert", "openvino-fp32"])
    assert not is_measured(result, "minilm", Cell.parse("8x32"), 1, ["ibert"])  # tried again
    assert result["skipped"] == document()["skipped"]

    other = document()
    other["software"]["sources"] = "another"
    with messages.raises(StoreError):
        continue_result(other, path)


def test_an_interrupted_write_leaves_the_earlier_result(tmp_path, monkeypatch):
    path = tmp_path / "cpu.json"
    save(document(row("ibert", 4.0)), path)

    def full(*_arguments, **_options):
        raise OSError("no space left on device")

    monkeypatch.setattr(json, "dumps", full)
    with pytest.raises(OSError):
        save(document(), path)
    monkeypatch.undo()
    assert len(load(path)["rows"]) == 1


def test_what_is_no_result_is_refused(tmp_path, messages):
    path = tmp_path / "cpu.json"
    path.write_text("{")
    with messages.raises(StoreError):
        load(path)
    path.write_text('{"schema": 1}')
    with messages.raises(StoreError):
        load(path)


def test_later_figures_replace_earlier_ones_and_the_better_limit_stays(tmp_path, messages):
    first, second = document(row("ibert", 4.0)), document(row("ibert", 3.0))
    second["limits"]["1"]["read-L3"]["value"] = 90.0
    second["limits"]["1"]["read-L2"]["value"] = 210.0
    for name, part in (("a", first), ("b", second)):
        save(part, tmp_path / name)
    merged = merge([tmp_path / "a", tmp_path / "b"])
    assert [r["median_ms"] for r in merged["rows"]] == [3.0]
    assert merged["limits"]["1"]["read-L3"]["value"] == 100.0
    assert merged["limits"]["1"]["read-L2"]["value"] == 210.0
    add_limits(merged, 3, {"read-L3": {"value": 1.0, "unit": "GB/s"}})
    assert merged["limits"]["3"]["read-L3"]["value"] == 1.0

    other = document()
    other["machine"]["processor"] = "Q"
    save(other, tmp_path / "c")
    with messages.raises(StoreError):
        merge([tmp_path / "a", tmp_path / "c"])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no message"),
        ("loading\nKilled\n", "Killed"),
        (
            "Traceback (most recent call last):\n"
            '  File "x.py", line 1, in <module>\n'
            "ibert_tvm.common.errors.TargetError: no linker\n"
            "  what to do: install gcc\n"
            "[13:11:11] Warning: destroyed with remaining blocks!\n",
            "ibert_tvm.common.errors.TargetError: no linker",
        ),
    ],
)
def test_the_reason_of_a_failure_is_its_exception(text, reason):
    assert _reason(text) == reason


# A worker says hello, is stopped until it is asked, and computes without an end.
_ENDLESS = """
import os, sys
print('{"pid": %d}' % os.getpid(), flush=True)
sys.stdin.readline()
print('{}', flush=True)
while True:
    pass
"""
_PARENT = """
import sys
from benchmarks.process import Served
worker = Served([sys.executable, "-c", sys.argv[1]])
if sys.argv[2] == "busy":
    worker._pause = lambda: None
    worker.ask({}, 60)
print(worker.hello["pid"], flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("state", ["stopped", "busy"])
def test_a_worker_ends_with_its_parent(state):
    """One computed on for hours after the measuring process had been killed."""
    parent = subprocess.Popen(
        [sys.executable, "-c", _PARENT, _ENDLESS, state],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with parent:
        ended = os.pidfd_open(int(parent.stdout.readline()))
        try:
            assert not select.select([ended], [], [], 0)[0]
            parent.kill()
            assert select.select([ended], [], [], PATIENCE)[0]
        finally:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(ended, signal.SIGKILL)
            os.close(ended)


def test_a_worker_whose_parent_is_gone_does_not_begin(monkeypatch):
    monkeypatch.setattr(os, "getpid", lambda: 1)
    command = ending_with_this([sys.executable, "-c", "raise SystemExit(7)"])
    monkeypatch.undo()
    assert subprocess.run(command, check=False).returncode == 1


_STARTING = """
import signal, subprocess, sys
from benchmarks.process import ending_with_this
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    print("ready", flush=True)
    subprocess.run(ending_with_this(["sleep", "60"]))
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.mark.representatives(2)
@pytest.mark.parametrize("microseconds", range(0, 2000, 200))
def test_ctrl_c_while_a_worker_starts_is_not_lost(microseconds):
    """Hooks that Python runs around a fork dropped it, in two starts of three."""
    with subprocess.Popen(
        [sys.executable, "-c", _STARTING], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        process.stdout.readline()
        time.sleep(microseconds * 1e-6)
        process.send_signal(signal.SIGINT)
        try:
            assert process.wait(timeout=PATIENCE) == 130
        finally:
            process.kill()
