"""Documents of a page in tests: of a small program that is really analysed, the rest invented."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ibert_tvm.report import program_graph
from tests.encoder.small_encoders import bert

HOSTILE = '"><script>window.hacked = 1</script><img src=x onerror="window.hacked = 1">{{ 7*7 }}'
"""Hostile names."""


_DOCUMENTS = Path(__file__).with_name("documents.json").read_text(encoding="utf-8")


def _read(name: str, label: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(_DOCUMENTS.replace('"LABEL"', json.dumps(label)))[name]
    return found


def bench(name: str = "encoder.layer.0.dense") -> dict[str, Any]:
    """What `ibert bench --per-layer --json` prints, of two kernels."""
    found: dict[str, Any] = _read("library", name)["bench"]
    return found


def library(label: str = "embedding", **changes: Any) -> dict[str, Any]:
    """One artefact, a library; `label` is an untrusted name of its source, classes and layers."""
    return {**_read("library", label), "graph": program_graph(bert()), **changes}


def package() -> dict[str, Any]:
    """One artefact, a package for a microcontroller."""
    held = _read("package", "embedding")
    kind = "microcontroller package"
    return library(kind=kind, package=held, inspect=None, bench=None, eval=None)


def document(*artefacts: dict[str, Any]) -> dict[str, Any]:
    """The document of a page."""
    return {"schema_version": 1, "ibert_tvm": "0.1.0", "made": "today", "artefacts": [*artefacts]}
