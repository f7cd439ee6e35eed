"""What a package says about itself, read without running or linking any of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FORMAT = 1
KIND = "ibert bare-metal package"
DOCUMENT = "ibert_model.json"


def is_package(folder: Path) -> bool:
    """Whether a folder is a package of any version, and may be replaced by another."""
    try:
        document = json.loads((folder / DOCUMENT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(document, dict) and document.get("kind") == KIND


def read_package(folder: Path) -> dict[str, Any]:
    """Content of a package's ``ibert_model.json``."""
    document: dict[str, Any] = json.loads((folder / DOCUMENT).read_text(encoding="utf-8"))
    return document
