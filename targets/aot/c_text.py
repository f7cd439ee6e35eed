"""Pieces of C that the generated header and driver share."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import Environment

# Words of C and C++, and names that generated functions use themselves, beside those that begin as
# `_GENERATED` says.
_RESERVED = """
auto break case char const continue default do double else enum extern float for goto if inline int
long register restrict return short signed sizeof static struct switch typedef union unsigned void
volatile while class new delete this template operator public private protected namespace using try
catch throw bool true false and or not xor NULL MAGIC STEP CALL DONE FETCH context run shapes
given_inputs given_outputs given_input_bytes given_output_bytes size_t
"""
_GENERATED = re.compile(r"__|ibert_|body_b\d|u?int\d+_t$", flags=re.IGNORECASE | re.ASCII)


PREFIX = "ibert"
"""What generated names begin with where a model has no name of its own."""
_LONGEST_PREFIX = 32
_OURS = re.compile(r'"(?:\\.|[^"\\\n])*"|\b(ibert_(?!tvm\b)|IBERT_)')


def is_prefix(text: str) -> bool:
    """Whether C names may begin with a text: words of small letters and digits, joined by ``_``.

    Two underscores are C++'s, and names that begin with ``ibert_`` are ours.
    """
    fits = re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", text, flags=re.ASCII) is not None
    return fits and len(text) <= _LONGEST_PREFIX and not text.startswith(f"{PREFIX}_")


def prefix_of(name: str) -> str:
    """The prefix that a model's name becomes; `PREFIX` where nothing of it can be one."""
    words = re.findall(r"[a-z0-9]+", name.lower(), flags=re.ASCII)
    text = "_".join(words)[:_LONGEST_PREFIX].strip("_")
    text = text if text[:1].isalpha() else f"m_{text}"[:_LONGEST_PREFIX].strip("_")
    return text if words and is_prefix(text) else PREFIX


def prefixed(text: str, prefix: str) -> str:
    """C whose names begin with another prefix; texts in quotes stay."""

    def renamed(match: re.Match[str]) -> str:
        if match[1] is None:
            return match[0]
        return f"{prefix}_" if match[1].islower() else f"{prefix.upper()}_"

    return _OURS.sub(renamed, text)


def c_type(dtype: str) -> str:
    """Type of C with so many bits: ``int8_t`` for int8."""
    return f"{dtype}_t"


def identifier(name: str) -> str:
    """A name as a C and C++ identifier: other characters become ``_``."""
    text = re.sub(r"\W", "_", name, flags=re.ASCII)
    if not text or text[0].isdigit() or text in _RESERVED.split() or _GENERATED.match(text):
        text = f"x_{text}"
    return text


def unique_identifiers(names: list[str], suffixes: tuple[str, ...] = ("",)) -> list[str]:
    """`identifier` of every name; names that would be the same are numbered.

    Names are the same that differ in capitals alone: macros are in capitals. With suffixes no
    identifier with one of them is another, with or without one, or is reserved.
    """
    taken = {word.lower() for word in _RESERVED.split()}
    result = []
    for name in names:
        text = base = identifier(name)
        number = 1
        while not taken.isdisjoint(f"{text}{suffix}".lower() for suffix in suffixes):
            number += 1
            text = f"{base}_{number}"
        taken.update(f"{text}{suffix}".lower() for suffix in suffixes)
        result.append(text)
    return result


def quoted(text: str) -> str:
    """A C string literal; what is not printable ASCII is written as octal bytes."""
    pieces = []
    for byte in text.encode("utf-8"):
        char = chr(byte)
        if char in '"\\':
            pieces.append("\\" + char)
        elif 32 <= byte < 127 and char != "?":  # no trigraphs
            pieces.append(char)
        else:
            pieces.append(f"\\{byte:03o}")
    return '"' + "".join(pieces) + '"'


def comment(text: str) -> str:
    """Text that may stand in a comment."""
    return text.replace("*/", "* /").replace("/*", "/ *").encode("ascii", "replace").decode()


def shape_suffix(batch: int, seq_len: int) -> str:
    """``b1_s128``."""
    return f"b{batch}_s{seq_len}"


def int32_literal(value: int) -> str:
    """A constant of int32_t; the smallest number has no literal of its own."""
    return "INT32_MIN" if value == -(2**31) else str(value)


def rendered(path: Path, **values: object) -> str:
    """A text from a template of Jinja, which is a file of the package."""
    return _environment(path.parent).get_template(path.name).render(values)


@functools.cache
def _environment(folder: Path) -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(folder),
        undefined=StrictUndefined,
        autoescape=False,  # C and Markdown, no HTML
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    filters = {"c_type": c_type, "comment": comment, "quoted": quoted, "int32": int32_literal}
    environment.filters.update(filters)
    return environment
