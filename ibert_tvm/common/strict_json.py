"""Untrusted JSON: one meaning, bounded work, and no exception but `DocumentError`.

Python's parser takes more than JSON (NaN, the last of two equal keys, numbers of any length), and
answers deep nesting with a RecursionError. Like `errors`, this module imports nothing that a folder
of this project may not import.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, TypeAlias

from .errors import DocumentError

JsonObject: TypeAlias = Mapping[str, Any]
"""An object of a document that was checked, or that is about to be written."""

JsonDict: TypeAlias = dict[str, Any]
"""One that is being made, or changed."""

MAX_DIGITS = 32
"""Characters of a number."""
_SHOWN = 60
_NESTING = {"[": 1, "{": 1, "]": -1, "}": -1}


def shown(value: Any) -> str:
    """Part of a document as an error shows it: JSON in printable ASCII, cut where it is long."""
    text = json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


@contextmanager
def opened(file: Path) -> Iterator[BinaryIO]:
    """Open an untrusted file to read; `DocumentError` if that fails, or if it is no regular file.

    A pipe, which somebody would have to write to, is refused instead of waited for.
    """
    try:
        with open(os.open(file, os.O_RDONLY | os.O_NONBLOCK), "rb") as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                raise DocumentError("it is no regular file")
            yield stream
    except OSError as error:
        raise DocumentError(str(error.strerror or error)) from error


def read_bytes(file: Path, max_bytes: int) -> bytes:
    """Read an untrusted file.

    Parameters
    ----------
    file : pathlib.Path
        What is no file, a pipe for example, is not waited for.
    max_bytes
        How much may be in it.

    Raises
    ------
    DocumentError
        If it cannot be read, is no regular file, or has more in it.
    """
    with opened(file) as stream:
        content = stream.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise DocumentError(f"it has more than {max_bytes} bytes")
    return content


def decode(content: bytes) -> str:
    """Return the text of UTF-8; `DocumentError` if it is none."""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DocumentError(f"it is not readable JSON: {error}") from None


def read_json(file: Path, max_bytes: int, max_depth: int) -> Any:
    """Read and parse a file, as `read_bytes` and `parse` do; with their errors."""
    return parse(decode(read_bytes(file, max_bytes)), max_depth)


def parse(text: str, max_depth: int) -> Any:
    """Parse a document.

    Parameters
    ----------
    text
        JSON.
    max_depth
        How deep arrays and objects may be nested.

    Returns
    -------
    dict, list, str, int, float, bool or None
        Numbers are finite, strings can be encoded.

    Raises
    ------
    DocumentError
        If the text is not JSON, is nested deeper, has a key twice, a number that is too long or is
        none, or half of a surrogate pair.
    """
    if _depth(text) > max_depth:
        raise DocumentError(
            "arrays and objects are nested too deep", why=f"the format has {max_depth} levels"
        )
    try:
        document = json.loads(
            text,
            object_pairs_hook=_object,
            parse_int=lambda number: int(_short(number)),
            parse_float=_real,
            parse_constant=_constant,
        )
        json.dumps(document, ensure_ascii=False).encode("utf-8")
    except json.JSONDecodeError as error:
        raise DocumentError(f"it is not readable JSON: {error}") from None
    except UnicodeEncodeError:
        raise DocumentError("a string has half of a surrogate pair") from None
    return document


def _depth(text: str) -> int:
    """Deepest nesting of a text, exact as far as it is JSON."""
    unescaped = text.replace("\\\\", "").replace('\\"', "")
    outside_of_strings = "".join(unescaped.split('"')[::2])
    levels = (_NESTING[character] for character in re.findall(r"[\[\]{}]", outside_of_strings))
    return max(accumulate(levels), default=0)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise DocumentError(f"the key {shown(twice)} is there twice in one object")
    return found


def _real(text: str) -> float:
    value = float(_short(text))
    if not math.isfinite(value):
        raise DocumentError(f"the number {text} is too large")
    return value


def _short(text: str) -> str:
    if len(text) > MAX_DIGITS:
        raise DocumentError(
            f"a number has {len(text)} characters", why=f"{text[:8]}... is longer than {MAX_DIGITS}"
        )
    return text


def _constant(text: str) -> NoReturn:
    raise DocumentError(f"{text} is not a number of JSON")
