"""Without sentence-transformers there is nothing to compare with."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore: list[str] = []
if find_spec("sentence_transformers") is None:
    collect_ignore += ["test_layouts.py"]
