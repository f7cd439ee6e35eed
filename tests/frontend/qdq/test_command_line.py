"""`ibert quantize` and `ibert inspect` on quantised ONNX files."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.commands import Ibert
from tests.frontend.qdq.encoder import batches, encoder, quantize
from tests.frontend.qdq.variants import VARIANTS


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """``all.onnx``, ``linear.onnx``, and token batches for calibration."""
    path = tmp_path_factory.mktemp("files")
    for name, variant in (("all", "qdq_all_per_channel"), ("linear", "qdq_linear")):
        model = quantize(path, encoder(layers=1), **VARIANTS[variant])
        onnx.save(model, path / f"{name}.onnx")
    stacked = {name: np.concatenate([b[name] for b in batches()]) for name in batches(1)[0]}
    np.savez(path / "calibration.npz", **stacked)
    return path


Command = Ibert


def shown(text: str) -> str:
    """What a command says of the quantisation in the file; sizes and paths are not looked at."""
    kept = ("scales", "calibrated", "ignored", "weights", "need", "rounding")
    lines = [line.rstrip() for line in text.splitlines()]
    return "\n".join(line for line in lines if line.startswith(kept))


def test_quantise_and_inspect_tell_what_the_file_gave(
    ibert: Command, folder, tmp_path, monkeypatch, messages
):
    monkeypatch.setenv("COLUMNS", "500")
    output = tmp_path / "all.ibert"
    outcome = ibert("quantize", folder / "all.onnx", "-o", output)
    assert outcome.code == 0, outcome.stderr
    for text in (outcome.stdout, ibert("inspect", output).stdout):
        messages.check(shown(text), rows=re.compile(r"\d+ of \d+(?= rows hold)"))
    stored: Mapping[str, Any] = json.loads((output / "quantization.json").read_text())
    document = ibert("inspect", output, "--json").document
    assert document["source_scales"] == stored["source_scales"]
    mask = [e for e in stored["source_scales"]["ignored"] if e["tensor"] == "/mask/Mul_output_0"]
    assert [edge["use"] for edge in mask] == ["inputs"]
    assert "e+36" in mask[0]["grid"]


@pytest.mark.slow
def test_missing_scales_are_asked_for_and_estimated(ibert: Command, folder, tmp_path):
    file, output = folder / "linear.onnx", tmp_path / "linear.ibert"
    outcome = ibert("quantize", file, "-o", output, "--json")
    assert outcome.code == 2
    assert outcome.error["what"] == "the quantised model has no scale for 5 values"
    assert not output.exists()
    document = ibert(
        "quantize", file, "-o", output, "--calibration", folder / "calibration.npz", "--json"
    ).document
    assert len(document["source_scales"]["calibrated"]["stream"]) == 5
    assert document["calibration_texts"] == 16


@pytest.mark.slow
def test_inspect_says_what_is_missing_before_anything_is_quantised(
    ibert: Command, folder, monkeypatch, messages
):
    monkeypatch.setenv("COLUMNS", "500")
    grid = re.compile(r"(?<=scale )\S+ zero point \d+")  # ONNX Runtime's calibration
    messages.check(shown(ibert("inspect", folder / "linear.onnx", "-v").stdout), grid=grid)
    document = ibert("inspect", folder / "linear.onnx", "--json").document["quantisation"]
    assert len(document["edges"]) == 16
    assert len(document["missing"]) == 5
