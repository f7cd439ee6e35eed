"""Without ONNX, or torch for the comparison with Hugging Face folders, tests are not collected."""

from __future__ import annotations

from importlib.util import find_spec

from tests.cli.conftest import ibert  # noqa: F401 (a fixture)

collect_ignore: list[str] = []
if find_spec("onnx") is None or find_spec("onnxruntime") is None:
    collect_ignore += [
        "test_command_line.py",
        "test_identity.py",
        "test_minilm.py",
        "test_place.py",
        "test_quantised_models.py",
        "test_refusals.py",
        "test_strip.py",
    ]
if find_spec("torch") is None or find_spec("transformers") is None:
    collect_ignore += ["test_identity.py", "test_minilm.py"]
