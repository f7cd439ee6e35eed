"""What the command line prints has one word for each thing, and units (docs/glossary.md)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.syntax import syntax_tree

ROOT = Path(__file__).parents[2]
NOT_A_UNIT = re.compile(r" ?(K[bB]|kb|[mM]b|[gG]b|MiB|m?secs?|milli\w*|sec)\b")
NOT_A_WORD = re.compile(r"(.*_)?(artifacts?|duration|elapsed|kb|mb|msecs?|millis\w*|secs?)|.*_time")


def units(node: ast.AST) -> Iterator[str]:
    """What follows numbers in messages."""
    if isinstance(node, ast.JoinedStr):
        for before, after in zip(node.values, node.values[1:], strict=False):
            if isinstance(before, ast.FormattedValue) and isinstance(after, ast.Constant):
                found = NOT_A_UNIT.match(str(after.value))
                if found:
                    yield found[0]


def words(node: ast.AST) -> Iterator[str]:
    """Keys of documents."""
    if isinstance(node, ast.Dict):
        keys = [str(key.value) for key in node.keys if isinstance(key, ast.Constant)]
        yield from filter(NOT_A_WORD.fullmatch, keys)


def test_the_words_of_the_glossary() -> None:
    packages = (ROOT / name for name in ("ibert_tvm", "targets", "schedules"))
    files = [file for package in packages for file in package.rglob("*.py")]
    found = [
        f"{file.relative_to(ROOT)}: {text}"
        for file in sorted(files)
        for node in ast.walk(syntax_tree(file))
        for text in (*units(node), *words(node))
    ]
    assert found == []


def test_wrong_words_are_found() -> None:
    module = ast.parse('{"elapsed": f"{size} KB", "load_time": f"{time:.1f} secs", "bytes": 1}')
    assert [text for node in ast.walk(module) for text in units(node)] == [" KB", " secs"]
    assert [text for node in ast.walk(module) for text in words(node)] == ["elapsed", "load_time"]
