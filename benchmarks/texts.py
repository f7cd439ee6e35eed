"""Texts for benchmarks: sets that calibration never saw, of several sources and lengths.

Besides the held-out texts of the package, they come from the standard library of the Python that
runs: first paragraphs of docstrings, and short or odd strings (statuses, messages of errors,
keywords, names, numbers, punctuation). Every set is halved: one half is for whoever chooses a
recipe, the other for the figures that are published.

`documentation` is for measuring speed: ten thousand paragraphs, long and short as they come.
"""

from __future__ import annotations

import ast
import errno
import functools
import http
import importlib
import inspect
import keyword
import os
import re
import string
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

from .models import DATA

__all__ = ["HALVES", "SETS", "documentation", "texts"]

HALVES = ("chosen-on", "published")
_MODULES = (
    "argparse", "ast", "asyncio", "base64", "calendar", "codecs", "collections", "configparser",
    "contextlib", "csv", "datetime", "decimal", "difflib", "doctest", "email.message", "enum",
    "fractions", "functools", "gzip", "hashlib", "heapq", "html", "http.client", "http.cookiejar",
    "importlib.util", "inspect", "io", "ipaddress", "json", "locale", "logging", "logging.handlers",
    "mailbox", "multiprocessing.pool", "os", "pathlib", "pickle", "platform", "queue", "random",
    "re", "shutil", "socket", "sqlite3", "ssl", "statistics", "string", "subprocess", "tarfile",
    "tempfile", "textwrap", "threading", "tokenize", "traceback", "typing", "unittest",
    "unittest.mock", "urllib.parse", "urllib.request", "uuid", "warnings", "weakref",
    "xml.dom.minidom", "xml.etree.ElementTree", "zipfile",
)  # fmt: skip


def _held_out() -> list[str]:
    lines = (DATA / "heldout.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line.strip()]


def _documented(name: str) -> Iterator[str]:
    module = importlib.import_module(name)
    for _, item in sorted(vars(module).items()):
        if getattr(item, "__module__", None) == name:
            members = vars(item).values() if inspect.isclass(item) else ()
            for documented in (item, *filter(inspect.isfunction, members)):
                if isinstance(documented.__doc__, str):
                    yield inspect.cleandoc(documented.__doc__)


@functools.cache
def _docstrings(count: int = 300) -> list[str]:
    """First paragraphs of at least six words, spread evenly over the modules.

    Packages change modules of the standard library: of the texts that a process has, those that it
    had first stay.
    """
    found: dict[str, None] = {}
    for name in _MODULES:
        for text in _documented(name):
            paragraph = re.sub(r"\s+", " ", text.split("\n\n")[0]).strip()
            if len(paragraph.split()) >= 6:
                found[paragraph] = None
    every = list(found)
    return [every[len(every) * number // count] for number in range(min(count, len(every)))]


def _odd() -> list[str]:
    """What people type besides sentences: from one character to some words."""
    statuses = [status.phrase for status in http.HTTPStatus]
    messages = [os.strerror(number) for number in sorted(errno.errorcode)][:60]
    numbers = ["0", "7", "42", "1984", "3.14159", "1e-9", "0x7fff", "12:30", "2024-02-29", "100%"]
    other = ["ok", "OK!", "yes", "no", "hi", "N/A", "TODO", "thx", "???", "...", ":-)", "a", "I"]
    names = ["München", "São Paulo", "東京", "Ελλάδα", "naïve café", "Łódź", "Привет", "مرحبا"]
    codes = ["x = y + 1", "ls -la /tmp", "SELECT 1;", "<br/>", "user@example.org", "C:\\Temp"]
    marks = list(string.punctuation[:8])
    found = dict.fromkeys(
        [*statuses, *messages, *keyword.kwlist, *numbers, *other, *names, *codes, *marks]
    )
    return list(found)


SETS = {"held-out": _held_out, "docstrings": _docstrings, "short and odd": _odd}


def texts(name: str, half: str | None = None) -> list[str]:
    """Texts of a set.

    Parameters
    ----------
    name : str
        One of `SETS`.
    half : str, optional
        One of `HALVES`; both by default.

    Returns
    -------
    list of str
    """
    every = SETS[name]()
    return every if half is None else every[HALVES.index(half) :: 2]


def documentation(count: int = 10_000) -> list[str]:
    """Paragraphs of the documentation in the sources of Python's standard library.

    Parameters
    ----------
    count : int
        How many, spread evenly over all modules.

    Returns
    -------
    list of str
        All different, on one line each, of at least three words.

    Raises
    ------
    ValueError
        If there are not so many.
    """
    found: dict[str, None] = {}
    for file in sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py")):
        if "site-packages" not in file.parts:
            for paragraph in _paragraphs(file):
                found[paragraph] = None
    every = list(found)
    if len(every) < count:
        raise ValueError(f"this Python's library has {len(every)} paragraphs, not {count}")
    return [every[len(every) * number // count] for number in range(count)]


_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def _paragraphs(file: Path) -> Iterator[str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about strings of old sources
            tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):  # Python's own tests hold files that are none
        return
    for node in ast.walk(tree):
        text = ast.get_docstring(node) if isinstance(node, _DOCUMENTED) else None
        for paragraph in (text or "").split("\n\n"):
            line = re.sub(r"\s+", " ", paragraph).strip()
            if len(line.split()) >= 3:
                yield line
