"""`ibert compile --runtime none`, and the commands that take what it writes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ibert_tvm.common.errors import UsageError
from ibert_tvm.runtime.device import Device
from ibert_tvm.runtime.library_file import read_metadata
from ibert_tvm.runtime.loading import load_engine
from tests.commands import Ibert
from tests.targets.aot.bare_bert import expected, inputs_of

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def ibert(ibert: Ibert) -> Call:
    """Run one command line in this process: its code, and what it printed."""

    def call(*arguments: object) -> tuple[int, str, str]:
        outcome = ibert(*arguments)
        return outcome.code, outcome.stdout, outcome.stderr

    return call


@pytest.fixture(scope="module")
def folder(quantized, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "small.ibert"
    quantized.save(path)
    return path


def document(call: Call, *arguments: object) -> Any:
    code, out, err = call(*arguments, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


@pytest.mark.slow
def test_from_the_folder_to_numbers(ibert: Call, quantized, folder: Path, tmp_path: Path) -> None:
    output = tmp_path / "small.so"
    chosen = ("--target", "host", "--runtime", "none", "--seq-len", "16", "--batch", "1,2")
    made = document(ibert, "compile", folder, "-o", output, *chosen)
    assert (made["runtime"], made["report"]["runtime"]) == ("none", "none")
    assert made["header"] == str(tmp_path / "small.h")
    assert set(made["report"]["memory"]["arena_bytes"]) == {"main_b1_s16", "main_b2_s16"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["small.h", "small.so"]

    shown = document(ibert, "inspect", output)
    assert shown["runtime"] == "none"
    assert [(f["symbol"], f["arena_bytes"]) for f in shown["functions"]] == [
        (f"small_run_b{batch}_s16", made["report"]["memory"]["arena_bytes"][f"main_b{batch}_s16"])
        for batch in (1, 2)
    ]
    code, text, _ = ibert("inspect", output)
    assert code == 0
    assert "none: plain C functions (docs/c-api.md)" in text
    assert f"1x16: {shown['functions'][0]['arena_bytes']} bytes, small_run_b1_s16" in text

    inputs = inputs_of(2, 16, seed=2, padding=False)
    np.savez(tmp_path / "inputs.npz", **inputs)
    results = tmp_path / "outputs.npz"
    arguments = ("--inputs", tmp_path / "inputs.npz", "--integers", "-o", results)
    document(ibert, "run", output, *arguments)
    with np.load(results) as stored:
        arrays = [stored[name] for name in stored.files if not name.endswith(".scale")]
    for got, want in zip(arrays, expected(quantized, inputs), strict=True):
        np.testing.assert_array_equal(got, want)

    measured = document(ibert, "bench", output, "--batch", "1", "--seconds", "0.05", "--per-layer")
    (result,) = measured["results"]
    assert (result["batch"], result["seq_len"]) == (1, 16)
    kernels = [part["name"] for part in result["layers"]["kernels"]]
    assert len(kernels) > 10 and "encoder.layer.0.attention.self" in str(result["layers"])


def test_threads_are_refused_where_there_are_none(library_path: Path) -> None:
    metadata = replace(read_metadata(library_path), threads=False)
    with pytest.raises(UsageError, match="cannot use 2 threads"):
        load_engine(metadata, Device("cpu"), 2, emulate=False)


@pytest.mark.parametrize(
    ("target", "runtime", "message"),
    [
        ("host", "python", "unknown runtime 'python'"),
        ("cortex-m4", "tvm", "no runtime 'tvm' for target 'cortex-m4'"),
    ],
)
def test_a_runtime_that_there_is_not(
    ibert: Call, folder: Path, tmp_path: Path, target: str, runtime: str, message: str
) -> None:
    output = tmp_path / "model.so"
    arguments = ("--target", target, "--runtime", runtime, "--seq-len", "16")
    code, _, text = ibert("compile", folder, "-o", output, *arguments)
    assert code == 4
    assert message in text
    assert not output.exists()
