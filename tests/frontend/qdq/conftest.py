"""Without ONNX, or torch for the comparison with Hugging Face folders, tests are not collected."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore: list[str] = []
collect_ignore_glob: list[str] = []
if any(find_spec(name) is None for name in ("onnx", "onnxruntime")):
    collect_ignore_glob += ["test_*.py"]
if any(find_spec(name) is None for name in ("torch", "transformers")):
    collect_ignore += ["test_identity.py", "test_minilm.py"]
