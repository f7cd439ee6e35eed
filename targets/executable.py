"""What a loader maps as code of a linked file, and by which addresses it is entered.

A loader reads program headers, so nothing here believes section headers: they, and the symbols,
only say where a decoding may start and what a finding is called. A wrong one makes the decoding
stop in the middle of an instruction, which is a finding.
"""

from __future__ import annotations

import logging
import re
import struct
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from .elf import opened
from .machines.record import BareMetal, Linux

if TYPE_CHECKING:
    from elftools.elf.elffile import ELFFile

    from .machines.record import Machine

logger = logging.getLogger(__name__)

_EXECUTE, _WRITE = 1, 2
_SMALLEST_PAGE = 4096
_LONGEST_NAME = 256
_LONGEST_INSTRUCTION = 15
_MOST_SEGMENTS, _MOST_CODE = 16, 64 * 2**20
# Loaders take the last of several tags, readers of files the first.
_REPEATED = ("DT_NULL", "DT_NEEDED")
_LOADS_MORE = ("DT_AUDIT", "DT_DEPAUDIT", "DT_AUXILIARY", "DT_FILTER")
_STATE = re.compile(r"\$([atd])(?:\.|$)")
"""Symbols that say where ARM instructions, Thumb instructions or data begin (ELF for ARM 5.5.5)."""


@dataclass(frozen=True)
class Segment:
    """An executable segment.

    Attributes
    ----------
    address, content
        As it is mapped.
    """

    address: int
    content: bytes

    @property
    def end(self) -> int:
        """The address behind it."""
        return self.address + len(self.content)


@dataclass
class Image:
    """The code of a linked file.

    Attributes
    ----------
    segments
        In order of address.
    findings
        What is wrong with the headers: a line each.
    entries
        Where it is entered from outside, by address; bit 0 as in a pointer. What each is.
    slots
        Words that the loader fills with an address.
    imports
        Symbols of other libraries.
    needed
        Libraries that it is linked with.
    names
        Symbols in the segments, from an untrusted file.
    states
        ``"a"``, ``"t"`` or ``"d"`` from an address on, where symbols say so.
    """

    segments: list[Segment] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    entries: dict[int, str] = field(default_factory=dict)
    slots: set[int] = field(default_factory=set)
    imports: set[str] = field(default_factory=set)
    needed: list[str] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)
    states: dict[int, str] = field(default_factory=dict)

    def enter(self, address: int, what: str) -> None:
        """Note an address from outside, if it is one of code."""
        if self.segment_of(address):
            self.entries.setdefault(address, what)

    def segment_of(self, address: int) -> Segment | None:
        """The executable segment that an address is in."""
        return next((s for s in self.segments if s.address <= address < s.end), None)

    def content(self, address: int) -> bytes:
        """The bytes of the instruction at an address, and maybe more."""
        segment = self.segment_of(address)
        place = address - segment.address if segment else 0
        return segment.content[place : place + _LONGEST_INSTRUCTION] if segment else b""

    @cached_property
    def _sorted_names(self) -> list[int]:
        return sorted(self.names)

    @cached_property
    def _sorted_states(self) -> list[int]:
        return sorted(self.states)

    def function_of(self, address: int) -> str:
        """The nearest symbol before an address; ``?`` in front of the first."""
        place = bisect_right(self._sorted_names, address)
        return self.names[self._sorted_names[place - 1]] if place else "?"

    def state_of(self, address: int) -> str:
        """State of the processor at an address; empty where no symbol says one."""
        place = bisect_right(self._sorted_states, address)
        return self.states[self._sorted_states[place - 1]] if place else ""


def read_image(path: Path, machine: Machine) -> Image:
    """Read what is mapped as code, and check that it cannot be changed.

    Parameters
    ----------
    path
        A library; or the image of a microcontroller, which was linked here, with relocations.
    machine
        Its machine.

    Returns
    -------
    Image
        Headers that cannot be read are a finding.
    """
    image = Image()
    content = path.read_bytes()
    try:
        with opened(_without_sections(content)) as elf:
            if (elf["e_machine"], elf.elfclass) != (machine.elf_machine, machine.bits):
                image.findings.append("it is for another machine")
            if elf["e_type"] != ("ET_DYN" if isinstance(machine.system, Linux) else "ET_EXEC"):
                image.findings.append(f"it is of another type of file ({elf['e_type']})")
            _read_segments(elf, content, image)
            _read_entries(elf, image)
    except Exception as error:  # pyelftools raises many classes for what headers can hold
        image.findings.append(f"headers that cannot be read: {error}")
        return image
    try:
        with opened(content) as elf:
            _read_hints(elf, machine.flow.constants, image)
            if isinstance(machine.system, BareMetal):
                _read_relocations(elf, machine.system.pointer, image)
    except Exception:  # of what lies there, nothing is believed
        logger.debug("section headers that cannot be read", exc_info=True)
    return image


def _without_sections(content: bytes) -> bytes:
    """The same file with a header that says that there are no sections."""
    wide = content[4] == 2
    offset, numbers = (0x28, 0x3C) if wide else (0x20, 0x30)
    changed = bytearray(content)
    changed[offset : offset + (8 if wide else 4)] = bytes(8 if wide else 4)
    changed[numbers : numbers + 4] = bytes(4)
    return bytes(changed)


def _read_segments(elf: ELFFile, content: bytes, image: Image) -> None:
    stack, end = None, 0
    hosted = elf["e_type"] == "ET_DYN"
    for header in (segment.header for segment in elf.iter_segments()):
        flags, address = header["p_flags"], header["p_vaddr"]
        where = f"the segment at {address:#x}"
        if header["p_type"] == "PT_GNU_STACK":
            stack = flags
        if header["p_type"] != "PT_LOAD":
            continue
        page = max(header["p_align"], _SMALLEST_PAGE) if hosted else 1
        if page & (page - 1):
            image.findings.append(f"{where} has an alignment of {page} bytes")
            page = _SMALLEST_PAGE
        if address // page * page < end:
            image.findings.append(f"{where} shares a page with the one before it")
        end = -(-(address + header["p_memsz"]) // page) * page
        if not flags & _EXECUTE:
            continue
        if flags & _WRITE:
            image.findings.append(f"{where} can be both written and executed")
        if header["p_memsz"] != header["p_filesz"]:
            image.findings.append(f"{where} is executable and has memory that the file does not")
        if len(image.segments) == _MOST_SEGMENTS:
            image.findings.append(f"there are more than {_MOST_SEGMENTS} executable segments")
            break
        if (address - header["p_offset"]) % page:
            image.findings.append(f"{where} lies on another part of its page than in the file")
        first, last = header["p_offset"], header["p_offset"] + header["p_filesz"]
        if last > len(content):
            image.findings.append(f"{where} ends behind the file")
        # Whole pages are mapped: what is around the segment on them can be executed too.
        around = content[first // page * page : first] + content[last : -(-last // page) * page]
        if any(around):
            image.findings.append(f"{where} has other bytes than zeros on its pages around it")
        image.segments.append(Segment(address, content[first:last]))
        if sum(len(segment.content) for segment in image.segments) > _MOST_CODE:
            image.findings.append(f"it has more than {_MOST_CODE} bytes of code")
            image.segments.clear()
            break
    if hosted and (stack is None or stack & _EXECUTE):
        image.findings.append("the stack of a process that loads it becomes executable")


def _read_entries(elf: ELFFile, image: Image) -> None:
    """Addresses of code in headers, the dynamic symbols and what a loader relocates."""
    width = elf.elfclass // 8
    enter = image.enter
    if elf["e_type"] == "ET_DYN":
        enter(elf["e_entry"], "the entry point")
    tables = list(elf.iter_segments("PT_DYNAMIC"))
    if len(tables) > 1:
        image.findings.append(f"there are {len(tables)} dynamic tables")
    for table in tables:
        tags = Counter(tag.entry.d_tag for tag in table.iter_tags())
        for name, count in tags.items():
            if count > 1 and name not in _REPEATED:
                image.findings.append(f"its dynamic table has {count} entries {name}")
        more = [name for name in _LOADS_MORE if tags[name]]
        image.findings += [f"it loads another library by {name}" for name in more]
        if tags["DT_HASH"] and not tags["DT_GNU_HASH"]:
            image.findings.append("its symbols are in a table of the old kind alone (DT_HASH)")
        for tag in table.iter_tags():
            if tag.entry.d_tag == "DT_NEEDED":
                image.needed.append(tag.needed)
            if tag.entry.d_tag == "DT_PLTGOT":  # the second and third word are the loader's
                image.slots |= {tag.entry.d_ptr + width, tag.entry.d_ptr + 2 * width}
            if tag.entry.d_tag in ("DT_INIT", "DT_FINI"):
                enter(tag.entry.d_val, tag.entry.d_tag)
            text_relocations = tag.entry.d_tag == "DT_FLAGS" and tag.entry.d_val & 4
            if tag.entry.d_tag == "DT_TEXTREL" or text_relocations:
                image.findings.append("the loader changes its code (text relocations)")
        for symbol in table.iter_symbols():
            if symbol["st_shndx"] == "SHN_UNDEF":
                image.imports |= {symbol.name} - {""}
            elif symbol["st_info"]["type"] != "STT_SECTION":
                enter(symbol["st_value"], f"the symbol {symbol.name}")
        for relocations in table.get_relocation_tables().values():
            for one in relocations.iter_relocations():
                slot = one["r_offset"]
                image.slots.add(slot)
                if image.segment_of(slot):
                    image.findings.append(f"the loader changes its code at {slot:#x}")
                what = f"the pointer at {slot:#x}"
                enter(_word(elf, slot), what)
                if "r_info" not in one.entry:  # RELR: all are relative to the base
                    continue
                symbol = table.get_symbol(one["r_info_sym"]) if one["r_info_sym"] else None
                addend = one["r_addend"] if one.is_RELA() else _word(elf, slot)
                enter((symbol["st_value"] if symbol else 0) + addend, what)


def _word(elf: ELFFile, address: int) -> int:
    """A pointer as the file has it."""
    width = elf.elfclass // 8
    for segment in elf.iter_segments("PT_LOAD"):
        place = address - segment["p_vaddr"]
        if 0 <= place <= segment["p_filesz"] - width:
            elf.stream.seek(segment["p_offset"] + place)
            return int.from_bytes(elf.stream.read(width), "little")
    return 0


def _read_relocations(elf: ELFFile, kind: int, image: Image) -> None:
    """Pointers that a linker resolved and said so."""
    sections = (one for kind in ("SHT_REL", "SHT_RELA") for one in elf.iter_sections(kind))
    for section in sections:
        for one in section.iter_relocations():
            if one["r_info_type"] == kind:
                place = one["r_offset"]
                image.slots.add(place)
                image.enter(_word(elf, place), f"the pointer at {place:#x}")


def _read_hints(elf: ELFFile, has_states: bool, image: Image) -> None:
    """Where decoding may start, and names: of the sections and of the symbols."""
    for section in elf.iter_sections():
        if image.segment_of(section["sh_addr"]):
            image.names.setdefault(section["sh_addr"], _shown(section.name))
    table = elf.get_section_by_name(".symtab")
    for symbol in table.iter_symbols() if table else ():
        address, kind = symbol["st_value"], symbol["st_info"]["type"]
        if kind in ("STT_SECTION", "STT_FILE", "STT_TLS") or symbol["st_shndx"] == "SHN_UNDEF":
            continue
        state = _STATE.match(symbol.name)
        if symbol.name.startswith("$"):
            if has_states and state and image.segment_of(address):
                image.states[address] = state[1]
            continue
        address &= ~1 if has_states and kind == "STT_FUNC" else -1
        if image.segment_of(address):
            image.names[address] = _shown(symbol.name)


def _shown(name: str) -> str:
    """A name as messages may show it."""
    return "".join(letter if letter.isprintable() else "?" for letter in name[:_LONGEST_NAME])


# Headers of a file and of a section by class (System V ABI, chapter 4).
_HEADERS = {
    32: (struct.Struct("<16sHHIIIIIHHHHHH"), struct.Struct("<10I")),
    64: (struct.Struct("<16sHHIQQQIHHHHHH"), struct.Struct("<IIQQQQIIQQ")),
}
_ALLOCATED_CODE = 2 | 4  # SHF_ALLOC, SHF_EXECINSTR


def code_file(image: Image, machine: Machine) -> bytes:
    """An ELF file for a disassembler: the segments as sections, and a symbol where each hint is.

    Symbols are called ``.`` and their address, so that a name cannot pass for a line of a listing.
    """
    from elftools.elf.enums import ENUM_E_MACHINE

    file, section = _HEADERS[machine.bits]
    symbols, strings = [_symbol(machine.bits, 0, 0, 0)], bytearray(1)
    parts = [bytes(file.size)]
    rows: list[tuple[int, ...]] = [(0,) * 10]

    def add(kind: int, content: bytes, flags: int, address: int, *rest: int) -> None:
        rows.append((1, kind, flags, address, sum(map(len, parts)), len(content), *rest))
        parts.append(content)

    def mark(name: str, address: int, number: int) -> None:
        symbols.append(_symbol(machine.bits, len(strings), address, number))
        strings.extend(name.encode() + b"\0")

    for number, segment in enumerate(image.segments, 1):
        add(1, segment.content, _ALLOCATED_CODE, segment.address, 0, 0, 16, 0)
        for address in sorted({segment.address, *image.names}):
            if segment.address <= address < segment.end:
                mark(f".{address:x}", address, number)
        if machine.code_symbol:
            mark(machine.code_symbol, segment.address, number)
        for address, state in sorted(image.states.items()):
            if segment.address <= address < segment.end:
                mark(f"${state}", address, number)
    count, texts = len(symbols), len(rows) + 1
    add(2, b"".join(symbols), 0, 0, texts, count, 8, len(symbols[0]))
    add(3, bytes(strings), 0, 0, 0, 0, 1, 0)
    ident = b"\x7fELF" + bytes((machine.bits // 32, 1, 1)) + bytes(9)
    kind, end = ENUM_E_MACHINE[machine.elf_machine], sum(map(len, parts))
    sizes = (file.size, 0, 0, section.size, len(rows), texts)
    parts[0] = file.pack(ident, 3, kind, 1, 0, 0, end, 0, *sizes)
    return b"".join([*parts, *(section.pack(*row) for row in rows)])


def _symbol(bits: int, name: int, address: int, section: int) -> bytes:
    if bits == 64:
        return struct.pack("<IBBHQQ", name, 0, 0, section, address, 0)
    return struct.pack("<IIIBBH", name, address, 0, 0, 0, section)
