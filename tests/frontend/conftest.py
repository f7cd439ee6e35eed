"""Without torch and transformers, tests that import models are not collected."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore: list[str] = []
if find_spec("torch") is None or find_spec("transformers") is None:
    collect_ignore += ["test_architectures.py", "test_modules.py", "test_folders.py"]
