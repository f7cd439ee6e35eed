"""Libraries with one change each, whose digests were made right."""

from __future__ import annotations

import base64
import io
import json
import random
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from elftools.elf.elffile import ELFFile

from ibert_tvm.common.file_seal import Part, append_seal, sealed_bytes
from ibert_tvm.runtime.library_file import METADATA_SECTION, WEIGHTS_SECTION

Change = Callable[[bytearray, ELFFile, random.Random], bool]


class Mutants:
    """Changed copies of a library.

    Parameters
    ----------
    library
        What is changed.
    """

    def __init__(self, library: Path) -> None:
        end = sealed_bytes(library)
        assert end is not None
        self._content = library.read_bytes()[:end]

    def write(self, change: Change, seed: int, path: Path) -> Path:
        """Write a copy with a change, the first of a sequence of numbers that is one."""
        draws = random.Random(seed)
        while True:
            changed = bytearray(self._content)
            if change(changed, ELFFile(io.BytesIO(self._content)), draws):
                break
        assert len(changed) == len(self._content) and changed != self._content
        path.write_bytes(changed)
        append_seal(path, [Part("the file", 0, len(changed))])
        return path


def metadata_field(changed: bytearray, elf: ELFFile, draws: random.Random) -> bool:
    """Another value at a random place of the metadata, or none."""

    def change(document: Any) -> None:
        parent, key = draws.choice(_leaves(document))
        if draws.random() < 0.1:
            del parent[key]
        else:
            parent[key] = _other(parent[key], draws)

    return _rewritten(changed, elf, change)


def words_exchanged(changed: bytearray, elf: ELFFile, draws: random.Random) -> bool:
    """Two words of the vocabulary in each other's places."""

    def change(document: Any) -> None:
        files = document["tokenizer"]
        words = zlib.decompress(base64.b64decode(files["vocab.txt"])).decode().split("\n")
        first, second = draws.sample(range(len(words)), 2)
        words[first], words[second] = words[second], words[first]
        content = zlib.compress("\n".join(words).encode())
        files["vocab.txt"] = base64.b64encode(content).decode()

    return _rewritten(changed, elf, change)


def byte_of(*sections: str) -> Change:
    """Another byte in one of the sections."""

    def change(changed: bytearray, elf: ELFFile, draws: random.Random) -> bool:
        section = elf.get_section_by_name(draws.choice(sections))
        place = section["sh_offset"] + draws.randrange(section["sh_size"])
        changed[place] ^= draws.randrange(1, 256)
        return True

    return change


def section_header(changed: bytearray, elf: ELFFile, draws: random.Random) -> bool:
    """Another bit in the header of a section, its flags for one."""
    size = elf["e_shentsize"]
    place = elf["e_shoff"] + draws.randrange(elf["e_shnum"]) * size + draws.randrange(size)
    changed[place] ^= 1 << draws.randrange(8)
    return True


def program_header(changed: bytearray, elf: ELFFile, draws: random.Random) -> bool:
    """Another bit in the header of a segment: what may be written or run."""
    size = elf["e_phentsize"]
    place = elf["e_phoff"] + draws.randrange(elf["e_phnum"]) * size + draws.randrange(size)
    changed[place] ^= 1 << draws.randrange(8)
    return True


CHANGES: dict[str, Change] = {
    "metadata": metadata_field,
    "tokenizer": words_exchanged,
    "weights": byte_of(WEIGHTS_SECTION),
    "code": byte_of(".text", ".dynsym", ".dynamic"),
    "sections": section_header,
    "segments": program_header,
}


def rewritten(library: Path, path: Path, change: Callable[[Any], None]) -> Path:
    """Write a copy of a library whose metadata a function changed."""
    shutil.copy(library, path)
    return Mutants(library).write(lambda c, elf, _: _rewritten(c, elf, change), 0, path)


def _rewritten(changed: bytearray, elf: ELFFile, change: Callable[[Any], None]) -> bool:
    """Change the metadata; False where they became longer, or stayed as they are."""
    section = elf.get_section_by_name(METADATA_SECTION)
    start, size = section["sh_offset"], section["sh_size"]
    before = json.loads(section.data())
    document = json.loads(section.data())
    change(document)
    text = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
    if document == before or len(text) > size:
        return False
    changed[start : start + size] = text.ljust(size)
    return True


def _leaves(document: Any) -> list[tuple[Any, Any]]:
    """Every value that is no object or list, by what holds it and its key."""
    found: list[tuple[Any, Any]] = []
    items = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in items:
        found += _leaves(value) if isinstance(value, (dict, list)) else [(document, key)]
    return found


def _other(value: Any, draws: random.Random) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return draws.choice([value + 1, value * 100, -value, 0])
    if isinstance(value, str) and value:
        place = draws.randrange(len(value))
        letter = "b" if value[place] != "b" else "a"
        return value[:place] + letter + value[place + 1 :]
    return 1
