"""The parts of the benchmark that decide what its figures mean: work, shapes, report."""

import json

import numpy as np
import pytest

from benchmarks.models import MODELS, Cell
from benchmarks.peers.base import Peer
from benchmarks.report import write_report


@pytest.mark.parametrize(
    ("model", "cell", "gmacs"),
    [
        ("minilm", "1x32", 0.34446),
        ("minilm", "1x128", 1.434),
        ("minilm", "8x128", 11.48),
        ("bert-base", "1x128", 11.17),
        ("bert-base", "8x256", 183.6),
        ("bert-large", "1x128", 39.46),
    ],
)
def test_work_counts_linear_layers_and_both_attention_products(model, cell, gmacs):
    assert MODELS[model].macs(Cell.parse(cell)) == pytest.approx(gmacs * 1e9, rel=1e-3)


def test_cell_round_trip_and_inputs():
    cell = Cell.parse("3x17")
    assert str(cell) == "3x17"
    inputs = cell.inputs()
    assert inputs["input_ids"].shape == (3, 17)
    assert inputs["input_ids"].dtype == np.int64
    np.testing.assert_array_equal(inputs["attention_mask"], np.ones((3, 17), np.int64))
    np.testing.assert_array_equal(inputs["input_ids"], Cell(3, 17).inputs()["input_ids"])


@pytest.mark.parametrize("text", ["", "8", "8x", "x128", "0x128", "8x-1", "8 x 128"])
def test_cell_refuses_what_is_not_a_shape(text):
    with pytest.raises(ValueError) as caught:
        Cell.parse(text)
    assert str(caught.value) == f"cell {text!r}: expected BATCHxLENGTH, for example 8x128"


class _Absent(Peer):
    name, title, precision = "absent", "not installed anywhere", "fp32"
    packages = (("no_such_module_here", "no-such-distribution"), ("numpy", "numpy"))

    def build(self, spec, cell, source, folder, cache):
        raise AssertionError("never built")

    def load(self, folder, spec, cell, threads):
        raise AssertionError("never loaded")


def test_missing_peer_says_what_to_install():
    assert _Absent().missing() == ("not installed: no-such-distribution (make bench installs them)")


def _result():
    row = {"model": "minilm", "cell": "1x128", "threads": 1, "load_seconds": 0.5, "peak_mib": 90}
    return {
        "machine": {
            "processor": "P",
            "family": "1",
            "model": "2",
            "features": ["avx2"],
            "cores": 2,
            "memory_gib": 8.0,
            "load_at_start": 0.0,
        },
        "software": {"python": "3.11", "packages": {"numpy": "2"}, "commit": "c", "modified": False}
        | {"time": "now"},
        "settings": {"rounds": 7, "seconds_per_turn": 0.5},
        "peers": {"ibert": "ours", "openvino-int8": "theirs", "openvino-int8-bf16": "theirs"},
        "precision": {"ibert": "int8", "openvino-int8": "int8", "openvino-int8-bf16": "int8"},
        "skipped": {"pytorch-fp32": "not installed: torch"},
        "limits": {"1": {"int8-vpdpbusd-zmm": {"value": 500.0, "unit": "GMAC/s"}}},
        "rows": [
            row | {"peer": "ibert", "median_ms": 4.0, "min_ms": 3.9, "gmacs": 350.0},
            row | {"peer": "openvino-int8", "median_ms": 6.0, "min_ms": 5.9, "gmacs": 240.0},
            row | {"peer": "openvino-int8-bf16", "median_ms": 5.0, "min_ms": 4.9, "gmacs": 290.0},
        ],
    }


def test_report_takes_the_faster_variant_and_states_the_fraction_of_the_ceiling(tmp_path):
    write_report(_result(), tmp_path / "cpu")
    text = (tmp_path / "cpu.md").read_text()
    assert "| minilm | 1x128 | 1 | 1.25 | – | – | 70% |" in text
    assert "| OpenVINO INT8 | 1.25 | 1.25 | 1.25 |" in text
    assert "- `pytorch-fp32`: not installed: torch" in text
    assert "Other processes" not in text
    assert json.loads((tmp_path / "cpu.json").read_text())["rows"][0]["median_ms"] == 4.0


def test_report_warns_of_a_busy_machine(tmp_path):
    result = _result()
    result["rows"][1]["other_load_cores"] = 1.5
    write_report(result, tmp_path / "cpu")
    text = (tmp_path / "cpu.md").read_text()
    assert "**Other processes kept up to 1.5 cores busy during this run.**" in text
