"""Instructions of WebAssembly by their numbers: names and immediates.

The instructions are listed in ``opcodes.txt``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from .binary import Reader

Immediate = Callable[[Reader], str]


def _numbers(reader: Reader, count: int = 1, bits: int = 32) -> str:
    return " ".join(str(reader.number(bits)) for _ in range(count))


def _address(reader: Reader) -> str:
    return f"align={1 << (reader.number() & 31)} offset={reader.number()}"


def _bytes(count: int) -> Immediate:
    return lambda reader: reader.bytes(count).hex()


IMMEDIATES: Mapping[str, Immediate] = {
    "none": lambda _reader: "",
    "index": _numbers,
    "two": partial(_numbers, count=2),
    "long": partial(_numbers, bits=64),
    "block": partial(_numbers, bits=64),  # a type, or the index of one, which is a signed number
    "table": lambda reader: _numbers(reader, reader.number() + 1),
    "byte": lambda reader: str(reader.byte()),
    "bytes4": _bytes(4),
    "bytes8": _bytes(8),
    "bytes16": _bytes(16),
    "address": _address,
    "lane": lambda reader: f"{_address(reader)} {reader.byte()}",
    "types": lambda reader: " ".join(f"{reader.byte():#x}" for _ in reader.many()),
}
"""Readers of immediates, by the words of the list."""


def _read(prefix: str) -> Iterator[tuple[int, tuple[str, str]]]:
    """Instructions of the list with a prefix, by their numbers behind it."""
    text = Path(__file__).with_name("opcodes.txt").read_text(encoding="utf-8")
    for line in text.replace("\n    ", " ").splitlines():
        if line.startswith(prefix):
            _, number, immediate, *names = line.split()
            for index, name in enumerate(names, int(number, 16)):
                if name != "-":
                    yield index, (name, immediate)


PLAIN: Mapping[int, tuple[str, str]] = dict(_read("--"))
"""Instructions of one number: name and kind of immediate."""
PREFIXES: Mapping[int, Mapping[int, tuple[str, str]]] = {
    0xFC: dict(_read("fc")),
    0xFD: dict(_read("fd")),
    0xFE: dict(_read("fe")),
}
"""Instructions of two numbers: by the first, then by the second."""
