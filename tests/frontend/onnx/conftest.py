"""Without ONNX and ONNX Runtime, tests that import ONNX models are not collected."""

from __future__ import annotations

from importlib.util import find_spec

_ONNX = [
    "test_exporters.py",
    "test_files.py",
    "test_fused.py",
    "test_heads.py",
    "test_inspect.py",
    "test_opsets.py",
    "test_refusals.py",
    "test_same_integers.py",
    "test_spellings.py",
    "test_static_shapes.py",
]
collect_ignore: list[str] = []
if any(find_spec(name) is None for name in ("onnx", "onnxruntime")):
    collect_ignore += _ONNX
if any(find_spec(name) is None for name in ("torch", "transformers", "onnxscript")):
    collect_ignore += ["test_exporters.py", "test_same_integers.py"]
