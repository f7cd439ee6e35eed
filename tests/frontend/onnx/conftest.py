"""Without ONNX and ONNX Runtime, tests that import ONNX models are not collected."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore: list[str] = []
collect_ignore_glob: list[str] = []
if any(find_spec(name) is None for name in ("onnx", "onnxruntime")):
    collect_ignore_glob += ["test_*.py"]
if any(find_spec(name) is None for name in ("torch", "transformers", "onnxscript")):
    collect_ignore += [
        *("test_exporters.py", "test_images.py", "test_more_models.py", "test_same_integers.py")
    ]
