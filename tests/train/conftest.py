"""Without torch and transformers nothing is collected here."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore_glob: list[str] = []
if find_spec("torch") is None or find_spec("transformers") is None:
    collect_ignore_glob += ["test_*.py"]
