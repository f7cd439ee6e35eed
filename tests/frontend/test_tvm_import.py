"""TVM is imported without PyTorch, which can be imported afterwards, or by others meanwhile."""

from __future__ import annotations

import sys
from importlib.util import find_spec

import pytest

from tests.processes import run_captured

_SCRIPT = """
import sys, threading
from ibert_tvm.frontend import tvm_import
from ibert_tvm.frontend.tvm_import import import_tvm
import_tvm()
assert "tvm" in sys.modules and "torch" not in sys.modules
hiding = tvm_import._Hiding()
sys.meta_path.insert(0, hiding)
found = []
try:
    import torch
except ModuleNotFoundError:
    found.append("hidden")
def other():
    import torch
    found.append("found")
thread = threading.Thread(target=other)
thread.start()
thread.join()
print(*found)
sys.meta_path.remove(hiding)
import torch, tvm
print(tvm.runtime.from_dlpack(torch.ones(2)).numpy().tolist())
"""


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_it_is_hidden_from_tvm_alone() -> None:
    said = run_captured([sys.executable, "-c", _SCRIPT], check=True).stdout.splitlines()
    assert said == ["hidden found", "[1.0, 1.0]"]
