"""Symbols and sections of ELF files, read by pyelftools; nothing of a file is run."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ibert_tvm.common.errors import TargetError

from .object_format import ObjectFormat

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


def _undefined(data: bytes) -> tuple[str, ...]:
    # A weak definition whose value is NULL until somebody fills it in counts as well: it is how
    # TVM's code generator reaches its runtime.
    names = {
        symbol.name
        for symbol in symbols(data)
        if symbol.name and (is_undefined(symbol) or symbol.name.startswith("__TVM"))
    }
    return tuple(sorted(names))


def _code_bytes(data: bytes) -> int:
    with opened(data) as elf:
        allocated = (s for s in elf.iter_sections() if s["sh_flags"] & _ALLOCATED)
        return sum(section["sh_size"] for section in allocated)


_ALLOCATED = 0x2  # SHF_ALLOC
ELF = ObjectFormat(
    _undefined,
    _code_bytes,
    # TVM adds conversions of half floats to every object, whether something calls them or not.
    (".text.tvm.fp16.conv", ".ARM.exidx*", ".debug*", ".eh_frame*", ".comment"),
)
