"""What ``-m gpu`` selects, where there is a GPU and where there is none."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.arm.tools import needs
from tests.cuda.stand_in_gpu import environment
from tests.processes import run_captured, without_torch

ROOT = Path(__file__).resolve().parents[2]
STAND_IN_ONLY = True
TEST = "tests/cuda/test_linear_kernels.py::test_every_epilogue_equals_the_specification"


def _pytest(environ: dict[str, str], *arguments: str) -> str:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments, TEST]
    done = run_captured(command, cwd=ROOT, env=without_torch(environ))
    return done.stdout + done.stderr


@pytest.mark.slow
def test_on_a_machine_with_a_gpu_kernels_run_on_it() -> None:
    needs("g++")
    plugin = ("-p", "tests.cuda.pretended_gpu", "-k", "gpu-plain or gpu-gelu")
    found = _pytest(environment(capability=90), "-m", "gpu", *plugin)
    assert "2 passed" in found, found


@pytest.mark.slow
def test_without_a_gpu_the_reason_is_said() -> None:
    environ = {**os.environ, "LD_LIBRARY_PATH": "", "CUDA_VISIBLE_DEVICES": ""}
    found = _pytest(environ, "-m", "gpu", "-rs", "-k", "gpu-plain")
    assert "1 skipped" in found, found
    assert "there is no NVIDIA" in found, found
