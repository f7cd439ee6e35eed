"""Sealing a linked library: a hash of each of its sections and of what lies between them."""

from __future__ import annotations

from pathlib import Path

from ibert_tvm.common.errors import TargetError
from ibert_tvm.common.file_seal import Part, append_seal

from .elf import opened

_MOST_SECTIONS = 4096
_DAMAGED = (*(ValueError, TypeError, LookupError, AttributeError, ArithmeticError), MemoryError)
BETWEEN = "headers and padding"
"""What a damaged file is told to be damaged in, where it is in no section."""


def seal_library(path: Path) -> None:
    """Append the seal, see `ibert_tvm.common.file_seal`; the last thing that is done to a library.

    Parameters
    ----------
    path
        An ELF file.

    Raises
    ------
    TargetError
        If it is no whole ELF file, since the linker did not write it to its end or it was changed,
        or if the seal cannot be written.
    """
    from elftools.common.exceptions import ELFError

    end = path.stat().st_size
    try:
        with opened(path) as elf:
            if elf.num_sections() > _MOST_SECTIONS:
                raise ELFError(f"{elf.num_sections()} sections")
            sections = sorted(
                (section["sh_offset"], section["sh_size"], section.name)
                for section in elf.iter_sections()
                if section["sh_type"] not in ("SHT_NOBITS", "SHT_NULL") and section["sh_size"]
            )
        outside = [name for offset, size, name in sections if offset + size > end]
        if outside:
            raise ELFError(f"section {outside[0]} lies behind the end of the file")
    except (ELFError, OSError, *_DAMAGED) as error:
        # pyelftools reports damage it did not foresee by whatever its parsing runs into.
        raise TargetError(
            f"the linked library {path.name} cannot be sealed",
            why=f"its ELF headers are damaged: {error}",
            todo="check that there is space on the disk, and compile again",
        ) from error
    parts: list[Part] = []
    at = 0
    for offset, size, name in [*sections, (end, 0, BETWEEN)]:
        if offset > at:
            parts.append(Part(BETWEEN, at, offset - at))
            at = offset
        if offset + size > at:
            parts.append(Part(name, at, offset + size - at))
            at = offset + size
    try:
        append_seal(path, parts)
    except OSError as error:
        raise TargetError(
            f"the linked library {path.name} cannot be sealed",
            why=error.strerror or str(error),
            todo="choose an output path in a directory that is writable and has space",
        ) from error
