"""Symbols and sections of ELF files, read by pyelftools; nothing of a file is run."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ibert_tvm.common.errors import TargetError

if TYPE_CHECKING:
    from elftools.elf.elffile import ELFFile
    from elftools.elf.sections import Symbol


@contextmanager
def opened(source: Path | bytes) -> Iterator[ELFFile]:
    """An ELF file, or the content of one, for the duration of a block."""
    from elftools.elf.elffile import ELFFile

    with io.BytesIO(source) if isinstance(source, bytes) else source.open("rb") as stream:
        yield ELFFile(stream)


def is_relocatable(path: Path) -> bool:
    """Whether a file is an object, which no loader takes."""
    with opened(path) as elf:
        return bool(elf["e_type"] == "ET_REL")


def symbols(source: Path | bytes, *tables: str) -> list[Symbol]:
    """Symbols of the tables that there are, by default those of ``.symtab``.

    Raises
    ------
    TargetError
        If there is something else where its headers say that they are.
    """
    try:
        with opened(source) as elf:
            found = map(elf.get_section_by_name, tables or (".symtab",))
            return [symbol for table in found if table for symbol in table.iter_symbols()]
    except Exception as error:  # pyelftools raises many classes for what headers can hold
        name = "" if isinstance(source, bytes) else source.name
        raise TargetError("the symbols of an ELF file cannot be read", name, str(error)) from error


def is_undefined(symbol: Symbol) -> bool:
    """Whether a file expects a symbol of others."""
    return bool(symbol["st_shndx"] == "SHN_UNDEF")


def is_function(symbol: Symbol) -> bool:
    """Whether a symbol is a function that the file defines or calls."""
    return bool(symbol["st_info"]["type"] == "STT_FUNC")
