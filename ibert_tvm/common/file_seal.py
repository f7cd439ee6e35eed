"""The seal at the end of a library: a hash of every part of the file, checked before it is mapped.

Loaders ignore what follows an ELF file, and nothing has to understand ELF to check it:

=============  ==========================================================================
parts          JSON: name, offset, bytes and SHA-256 of parts that make up all before it
8 bytes        length of the JSON, little-endian
32 bytes       SHA-256 of the JSON and its length
16 bytes       ``ibert seal 1`` and zeros
=============  ==========================================================================

It finds damage, not forgery. Like `strict_json`, this module imports nothing that a folder of this
project may not import.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import struct
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from .errors import DocumentError
from .schema import STRING, check, integer
from .strict_json import decode, parse

_MAGIC = b"ibert seal 1".ljust(16, b"\0")
_TAIL = struct.Struct("<Q32s16s")
_MAX_BYTES, _MAX_DEPTH = 4 * 2**20, 3
_PIECE = 8 * 2**20
_CHUNK = 2**20
_THREADS = 4
_SIZE = integer(0, 2**48)
_SCHEMA = [{"name": STRING, "offset": _SIZE, "bytes": _SIZE, "sha256": STRING}]


@dataclass(frozen=True)
class Part:
    """A run of bytes of a file.

    Attributes
    ----------
    name
        What errors call it.
    offset, bytes
        Where it lies.
    sha256
        Of its content.
    """

    name: str
    offset: int
    bytes: int
    sha256: str = ""


def _pieces(parts: Sequence[Part]) -> Iterator[Part]:
    """Parts cut into pieces that several processors can hash at once."""
    for part in parts:
        for start in range(0, part.bytes, _PIECE):
            yield Part(part.name, part.offset + start, min(_PIECE, part.bytes - start))


def _digests(file: Path, pieces: Sequence[Part]) -> list[str]:
    descriptor = os.open(file, os.O_RDONLY)

    def digest(piece: Part) -> str:
        found, at, end = hashlib.sha256(), piece.offset, piece.offset + piece.bytes
        while at < end:
            chunk = os.pread(descriptor, min(_CHUNK, end - at), at)
            if not chunk:
                break  # it became shorter meanwhile: the hash will tell
            found.update(chunk)
            at += len(chunk)
        return found.hexdigest()

    try:
        with ThreadPoolExecutor(_THREADS) as pool:
            return list(pool.map(digest, pieces))
    finally:
        os.close(descriptor)


def append_seal(file: Path, parts: Sequence[Part]) -> None:
    """Seal a file.

    Parameters
    ----------
    file : pathlib.Path
        Without a seal.
    parts
        One behind the other, from the first byte to the last.

    Raises
    ------
    OSError
        If it cannot be read or written.
    """
    pieces = list(_pieces(parts))
    digests = _digests(file, pieces)
    rows = [
        {**asdict(piece), "sha256": digest} for piece, digest in zip(pieces, digests, strict=True)
    ]
    text = json.dumps(rows).encode()
    length = struct.pack("<Q", len(text))
    tail = _TAIL.pack(len(text), hashlib.sha256(text + length).digest(), _MAGIC)
    with file.open("ab") as stream:
        stream.write(text + tail)


def seal_digest(file: Path | int) -> str:
    """SHA-256 that stands for all that a sealed file holds; whether it holds is not checked.

    Parameters
    ----------
    file : pathlib.Path or int
        A regular file, or its open descriptor.

    Returns
    -------
    str
        64 hexadecimal digits; empty if there is no seal.

    Raises
    ------
    OSError
        If the file cannot be read.
    """
    with open(file, "rb", closefd=not isinstance(file, int)) as stream:
        stream.seek(max(0, os.fstat(stream.fileno()).st_size - _TAIL.size))
        tail = stream.read(_TAIL.size)
    whole = len(tail) == _TAIL.size and tail.endswith(_MAGIC)
    return _TAIL.unpack(tail)[1].hex() if whole else ""


def sealed_bytes(file: Path) -> int | None:
    """Check the seal of a file against its content.

    Parameters
    ----------
    file : pathlib.Path
        A regular file.

    Returns
    -------
    int or None
        Bytes before the seal; None if there is none.

    Raises
    ------
    DocumentError
        If the seal is damaged, or a part of the file is not what it was; ``where`` names it.
    OSError
        If the file cannot be read.
    """
    size = file.stat().st_size
    with file.open("rb") as stream:
        stream.seek(max(0, size - _TAIL.size))
        tail = stream.read(_TAIL.size)
        if len(tail) < _TAIL.size or not tail.endswith(_MAGIC):
            return None
        length, expected, _ = _TAIL.unpack(tail)
        end = size - _TAIL.size - length
        if length > _MAX_BYTES or end < 0:
            raise DocumentError("its seal is damaged")
        stream.seek(end)
        text = stream.read(length)
    if hashlib.sha256(text + tail[:8]).digest() != expected:
        raise DocumentError("its seal is damaged")
    rows = parse(decode(text), _MAX_DEPTH)
    check(rows, _SCHEMA)
    parts = [Part(row["name"], row["offset"], row["bytes"], row["sha256"]) for row in rows]
    at = 0
    for part in parts:
        if part.offset != at:
            raise DocumentError("its seal leaves out a part of the file")
        at += part.bytes
    if at != end:
        raise DocumentError("its seal leaves out a part of the file")
    wrong = [
        re.sub(r"[^\w. -]", "?", part.name)
        for part, digest in zip(parts, _digests(file, parts), strict=True)
        if digest != part.sha256
    ]
    if wrong:
        raise DocumentError(
            f"{len(wrong)} of its {len(parts)} parts were changed: "
            + ", ".join(dict.fromkeys(wrong)),
            ", ".join(dict.fromkeys(wrong)),
        )
    return end
