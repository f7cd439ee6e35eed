"""Sources of the product as syntax trees: what several tests read is parsed once."""

from __future__ import annotations

import ast
import functools
from pathlib import Path


@functools.cache
def _parsed(text: str) -> ast.Module:
    return ast.parse(text)


def syntax_tree(path: Path) -> ast.Module:
    """The tree of a file, shared by all files of the same text: to be read only."""
    return _parsed(path.read_text(encoding="utf-8"))
