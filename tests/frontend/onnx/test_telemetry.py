"""An import contacts no other machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = """
import sys
import ibert_tvm
ibert_tvm.load(sys.argv[1])  # compared with its source, which ONNX Runtime runs
assert "onnxruntime" in sys.modules
"""


@pytest.mark.slow
def test_an_import_leaves_nothing_in_the_home_folder(tmp_path: Path) -> None:
    places = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    environment = {k: v for k, v in os.environ.items() if k != "ORT_DISABLE_TELEMETRY"}
    model = ROOT / "tests" / "golden" / "qdq.onnx"
    command = [sys.executable, "-c", SCRIPT, str(model)]
    subprocess.run(command, env={**environment, **places}, check=True, cwd=ROOT)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
