"""Docstrings of the standard library and of pinned packages, read without importing anything."""

from __future__ import annotations

import ast
import inspect
import re
import sysconfig
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from .samples import Sample, words_of

__all__ = ["Documented", "code_words", "documented", "names", "queries"]

PACKAGES = (
    "PIL", "attr", "capstone", "click", "elftools", "filelock", "fsspec", "google", "hypothesis",
    "huggingface_hub", "identify", "jinja2", "markdown_it", "ml_dtypes", "mpmath", "mypy",
    "networkx", "nodeenv.py", "numpy", "onnx", "onnx_ir", "onnxruntime", "onnxscript", "packaging",
    "pip", "platformdirs", "pluggy", "pre_commit", "psutil", "pygments", "pytest", "regex", "rich",
    "ruff", "safetensors", "scipy", "setuptools", "sympy", "tokenizers", "torch", "tornado", "tqdm",
    "transformers", "tvm", "tvm_ffi", "typer", "urllib3", "virtualenv", "xdist", "xgboost", "yaml",
)  # fmt: skip
"""What `make setup` installs besides the standard library, at pinned versions."""
_LEFT_OUT = {"test", "tests", "idlelib", "lib2to3", "site-packages", "_vendor", "testing"}
_ROLE = r":[a-z:]+:`[~!]?([^`<>]+)`|``([^`]+)``|`([^`]+)`"
_SECTION = r"(Args|Arguments|Parameters|Returns?|Raises|Yields|Examples?|Notes?|See Also)\b.{0,3}:"


@dataclass(frozen=True)
class Documented:
    """A function or class with a docstring.

    Attributes
    ----------
    package : str
        Top-level package.
    module : str
        File, relative to where packages are installed.
    name : str
        Name with that of its class.
    paragraphs : tuple of str
        Of its docstring, each on one line.
    """

    package: str
    module: str
    name: str
    paragraphs: tuple[str, ...]


def _files() -> Iterator[tuple[str, Path, Path]]:
    standard, installed = (Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib"))
    tops = [(standard, path) for path in sorted(standard.iterdir())]
    tops += [(installed, installed / name) for name in PACKAGES]
    for root, top in tops:
        if top.name in _LEFT_OUT or top.name.startswith("__"):
            continue
        for path in [top] if top.is_file() else sorted(top.rglob("*.py")):
            if path.suffix == ".py" and not _LEFT_OUT & set(path.relative_to(root).parts[1:-1]):
                yield top.stem, path, path.relative_to(root)


def _items(body: list[ast.stmt], prefix: str = "") -> Iterator[tuple[str, str]]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            text = ast.get_docstring(node, clean=False)
            if text and not node.name.startswith("_"):
                yield prefix + node.name, inspect.cleandoc(text)
            if isinstance(node, ast.ClassDef):
                yield from _items(node.body, f"{node.name}.")


@cache
def documented() -> tuple[Documented, ...]:
    """Everything public that has a docstring, in the order of the files."""
    found = []
    for package, path, relative in _files():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of escapes in others' strings
                tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):
            continue
        for name, text in _items(tree.body):
            blocks = re.split(r"\n\s*\n", text)
            paragraphs = tuple(re.sub(r"\s+", " ", block).strip() for block in blocks)
            found.append(Documented(package, str(relative), name, paragraphs))
    return tuple(found)


def _plain(text: str) -> str:
    """A paragraph without the marks of code."""
    return re.sub(_ROLE, lambda m: m[1] or m[2] or m[3], text).replace("`", "").replace("\t", " ")


def _prose(text: str) -> bool:
    """Whether a paragraph is a sentence or more, and no list, code or section of parameters."""
    words = text.split()
    return (
        5 <= len(words) <= 80
        and text[0].isupper()
        and text[-1] in ".:"
        and not re.match(_SECTION, text)
        and not re.search(r">>>|---|===|^\.\. |:param|::|\|", text)
    )


def _spoken(name: str) -> str:
    """A name as words: ``HTTPServer.serve_forever`` -> ``HTTP Server serve forever``."""
    parts = re.sub(r"([a-z0-9])([A-Z])|([A-Z])([A-Z][a-z])", r"\1\3 \2\4", name)
    return re.sub(r"[._\s]+", " ", parts).strip()


def names() -> Iterator[Sample]:
    """Name and first paragraph -> whether they belong together; the other name is of that file."""
    of_module: dict[str, list[Documented]] = {}
    for item in documented():
        if _prose(item.paragraphs[0]):
            of_module.setdefault(item.module, []).append(item)
    for items in of_module.values():
        for place, item in enumerate(items):
            text = _plain(item.paragraphs[0])
            own = _spoken(item.name)
            others = [_spoken(other.name) for other in items[place + 1 :] + items[:place]]
            other = next((name for name in others if name != own), None)
            if other is None:
                continue
            # Half of them are wrong, by what the text is: not in turns, which is a pattern.
            wrong = sum(text.encode()) % 2 == 1
            label = "mismatch" if wrong else "match"
            yield Sample(item.package, text, (other if wrong else own, text, label), label)


def code_words() -> Iterator[Sample]:
    """Words of a paragraph with marked-up code -> which of them are code, in CoNLL's columns."""
    for item in documented():
        for text in item.paragraphs:
            if not _prose(text) or not re.search(_ROLE, text):
                continue
            rows: list[tuple[str, str]] = []
            end = 0
            for mark in re.finditer(_ROLE, text):
                rows += [(word, "O") for word in _split(text[end : mark.start()])]
                code = (mark[1] or mark[2] or mark[3]).split()
                rows += [(word, "I-CODE" if i else "B-CODE") for i, word in enumerate(code)]
                end = mark.end()
            rows += [(word, "O") for word in _split(text[end:])]
            if not any("`" in word for word, _ in rows):
                body = "\n".join(f"{word} {tag}" for word, tag in rows)
                yield Sample(item.package, text, (body,))


def _split(text: str) -> list[str]:
    return re.findall(r"\w+(?:[-'.]\w+)*|[^\w\s]", text)


def queries() -> Iterator[Sample]:
    """First paragraph of a docstring, and the prose of the rest: a query and its document."""
    asked: set[frozenset[str]] = set()
    for item in documented():
        first, *rest = item.paragraphs
        body = " ".join(_plain(text) for text in rest if _prose(text))
        if _prose(first) and len(body.split()) >= 12 and words_of(first) not in asked:
            asked.add(words_of(first))
            yield Sample(item.package, body, (_plain(first), body))
