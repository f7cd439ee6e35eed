"""Sealing a linked library: a hash of each of its sections and of what lies between them."""

from __future__ import annotations

from pathlib import Path

from ibert_tvm.file_seal import Part, append_seal

BETWEEN = "headers and padding"
"""What a damaged file is told to be damaged in, where it is in no section."""


def seal_library(path: Path) -> None:
    """Append the seal, see `ibert_tvm.file_seal`; the last thing that is done to a library.

    Parameters
    ----------
    path
        An ELF file.

    Raises
    ------
    OSError
        If it cannot be written.
    """
    from elftools.elf.elffile import ELFFile

    with path.open("rb") as stream:
        sections = sorted(
            (section["sh_offset"], section["sh_size"], section.name)
            for section in ELFFile(stream).iter_sections()
            if section["sh_type"] not in ("SHT_NOBITS", "SHT_NULL") and section["sh_size"]
        )
    parts: list[Part] = []
    at = 0
    for offset, size, name in [*sections, (path.stat().st_size, 0, BETWEEN)]:
        if offset > at:
            parts.append(Part(BETWEEN, at, offset - at))
            at = offset
        if offset + size > at:
            parts.append(Part(name, at, offset + size - at))
            at = offset + size
    append_seal(path, parts)
