"""What the package tokenizers says about all code points is asked once, not by every process."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

from ibert_tvm.c_tokenizer import expression, normalizer, parts, text
from tests.cache import remembered


@functools.cache
def _remembered(module: str, name: str) -> Callable[..., Any]:
    modules = {"expression": expression, "normalizer": normalizer, "parts": parts}
    return remembered(getattr(modules[module], name))


@pytest.fixture(autouse=True)
def _asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expression, "members", _remembered("expression", "members"))
    monkeypatch.setattr(normalizer, "_characters", _remembered("normalizer", "_characters"))
    monkeypatch.setattr(parts, "_class_table", _remembered("parts", "_class_table"))
    for name in ("mark_classes", "cluster_flags"):
        monkeypatch.setattr(text, name, _remembered("normalizer", name))
