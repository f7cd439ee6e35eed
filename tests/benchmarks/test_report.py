"""What the report says of a result, and what it promises."""

from __future__ import annotations

import json

import pytest

from benchmarks.goals import PROMISED, check_goals, ratio
from benchmarks.machine import int8_ceiling, read_bandwidth
from benchmarks.models import MODELS, Cell
from benchmarks.peers import find_peer
from benchmarks.report import _markdown, main, write_report
from tests.benchmarks.documents import document, memory_row, row


def small():
    return document(row("ibert", 4.0), row("openvino-int8", 6.0), row("openvino-int8-bf16", 5.0))


def eventful():
    """Busy, wrong in two places, with a profile, a failure, another commit and two memories.

    10.6 MB of weights are read in 4 ms from an L3 of 32 MiB; 42.5 MB in 16 ms from DRAM.
    """
    part = {"kind": "linear", "layer": "", "calls": 12, "milliseconds": 3.0, "share": 0.75}
    parts = [part | {"name": "encoder.layer.*.dense", "macs": 9, "gmacs": 210.4}]
    parts.append(part | {"name": "outside of kernels", "kind": "", "calls": 0, "gmacs": None})
    profile = {"model": "minilm", "cell": "1x128", "threads": 1, "peer": "ibert", "by_role": parts}
    failed = {"model": "minilm", "cell": "8x32", "threads": 2, "peer": "ibert", "failed": "SIGILL"}
    commits = {"ibert": 4.0, "ibert@abc": 4.2, "ibert@def": 5.0}
    result = document(
        *(row(name, ms) for name, ms in commits.items()),
        row("openvino-int8", 6.0) | {"other_load_cores": 1.5, "cosine_to_pytorch": 0.9},
        row("openvino-fp32", 16.0, cell="1x32"),
        failed,
        profiles=[profile],
    )
    result["rows"][0]["cosine_to_pytorch"] = 0.355
    for field, value in (("peers", "title"), ("precision", "int8")):
        result[field] |= dict.fromkeys(commits, value)
    return result


@pytest.mark.parametrize("make", [small, eventful])
def test_the_report_of_a_result(make, messages):
    messages.check(_markdown(make(), None))


def test_bandwidth_of_each_level():
    limits = document()["limits"]["1"]
    caches = {"L2": 1024, "L3": 32768}
    assert read_bandwidth(limits, caches, 1024 * 1024) == ("L2", 200.0)
    assert read_bandwidth(limits, caches, 1024 * 1024 + 1) == ("L3", 100.0)
    assert read_bandwidth(limits, caches, 32 * 2**20 + 1) == ("DRAM", 40.0)
    assert read_bandwidth(limits, {}, 1) == ("DRAM", 40.0)
    assert read_bandwidth({}, caches, 1) is None


def test_a_chart_is_drawn_only_of_comparisons(tmp_path):
    pytest.importorskip("matplotlib")
    assert len(write_report(document(row("ibert", 4.0)), tmp_path / "alone")) == 2
    *_, chart = write_report(small(), tmp_path / "cpu")
    assert chart.read_bytes().startswith(b"\x89PNG")
    assert "![Latency relative to ibert](cpu.png)" in (tmp_path / "cpu.md").read_text()


def everything(latency, **changes):
    """All promised cells; `latency` gives a peer's time from the work in GMAC and the threads."""
    cells = {**PROMISED, "bert-large": ("1x128",)}
    rows = [
        row(peer, latency(peer, MODELS[model].macs(Cell.parse(cell)) * 1e-9, threads), model, cell)
        | {"threads": threads}
        for model, shapes in cells.items()
        for cell in shapes
        for threads in (1, 2)
        for peer in ("ibert", "openvino-int8", "onnxruntime-int8-dynamic", "openvino-fp32")
    ]
    return document(*rows, **changes)


# Milliseconds per GMAC on one thread; the ceiling of `documents` is 2.0.
MET = {"ibert": 2.2, "openvino-int8": 2.7, "onnxruntime-int8-dynamic": 4.0, "openvino-fp32": 9.0}


def test_all_promises_met():
    memory = [memory_row("ibert", 200.0), memory_row("onnxruntime-int8-dynamic", 250.0)]
    result = everything(lambda peer, work, threads: MET[peer] * work / threads, memory=memory)
    goals = check_goals(result)
    assert [goal.met for goal in goals] == [True] * 10
    assert [goal.cells for goal in goals] == [
        "24 of 24",
        "24 of 24",
        "24 of 24",
        "16 of 16",
        "2 of 2",
        "1 of 1",
        "1 of 1",
        "16 of 16",
        "12 of 12",
        "1 of 1",
    ]
    assert goals[1].measured.startswith("1.23; of minima ")
    assert goals[5].measured.startswith("91% (bert-base 1x128, 1 thread); of minima 91%")
    assert goals[9].measured == "200; onnxruntime-int8-dynamic 250"


@pytest.mark.parametrize(
    ("number", "peer", "model", "cell", "factor"),
    [
        (0, "openvino-int8", "bert-base", "4x256", 0.89),
        (2, "onnxruntime-int8-dynamic", "minilm", "8x32", 0.98),
        (3, "openvino-fp32", "bert-base", "8x256", 0.97),
        (4, "openvino-fp32", "bert-large", "1x128", 0.97),
        (5, "ibert", "bert-base", "1x128", 1.08),
        (6, "ibert", "minilm", "1x128", 1.25),
        (7, "ibert", "bert-base", "8x128", 1.05),
        (8, "ibert", "minilm", "8x128", 1.05),
    ],
)
def test_one_cell_breaks_a_promise_and_is_named(number, peer, model, cell, factor):
    result = everything(lambda peer, work, threads: MET[peer] * work / threads)
    assert check_goals(result)[number].met
    for entry in result["rows"]:
        if (entry["peer"], entry["model"], entry["cell"]) == (peer, model, cell):
            entry["median_ms"] *= factor
    goal = check_goals(result)[number]
    assert goal.met is False
    assert model in goal.measured and cell in goal.measured


def test_the_geometric_mean_may_be_missed_where_no_cell_is():
    slow = MET | {"openvino-int8": 2.5}
    goals = check_goals(everything(lambda peer, work, threads: slow[peer] * work / threads))
    assert (goals[0].met, goals[1].met) == (True, False)


def test_more_memory_than_the_smaller_variant_of_the_peer_is_a_miss():
    memory = [
        memory_row("ibert", 240.0),
        memory_row("onnxruntime-int8-dynamic", 230.0),
        memory_row("onnxruntime-int8-static", 300.0),
    ]
    assert check_goals(document(memory=memory))[9].met is False


def test_nothing_measured_is_neither_met_nor_missed():
    assert {goal.met for goal in check_goals(document())} == {None}


def test_results_are_merged_into_one_report(tmp_path, capsys):
    for name, cell in (("a", "1x32"), ("b", "1x128")):
        part = document(row("ibert", 4.0, cell=cell), row("openvino-int8", 5.0, cell=cell))
        (tmp_path / f"{name}.json").write_text(json.dumps(part))
    parts = [str(tmp_path / "a.json"), str(tmp_path / "b.json")]
    assert main([*parts, "-o", str(tmp_path / "both")]) == 0
    rows = json.loads((tmp_path / "both.json").read_text())["rows"]
    assert [(r["cell"], r["peer"]) for r in rows] == [
        ("1x32", "ibert"),
        ("1x32", "openvino-int8"),
        ("1x128", "ibert"),
        ("1x128", "openvino-int8"),
    ]
    assert str(tmp_path / "both.md") in capsys.readouterr().out


def test_the_ceiling_is_that_of_the_best_instruction() -> None:
    limits = {"int8-vpdpbusd-zmm": 400.0, "int8-tdpbusd-tile": 2900.0, "int16-vpmaddwd-ymm": 150.0}
    measured = {name: {"value": value, "unit": "GMAC/s"} for name, value in limits.items()}
    assert int8_ceiling(measured) == 2900.0
    del measured["int8-tdpbusd-tile"]
    assert int8_ceiling(measured) == 400.0


def test_own_vnni_is_compared_like_a_peer() -> None:
    peer = find_peer("ibert-vnni")
    assert (peer.target, find_peer("ibert").target) == ("x86-avx512-vnni", "host")
    assert ratio({"ibert": {"median_ms": 2.0}, peer.name: {"median_ms": 5.0}}, "own VNNI") == 2.5
