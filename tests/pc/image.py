"""What the memory of the emulated PC holds when it starts: the program, a library, its inputs."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from elftools.elf.elffile import ELFFile

BASE = 0x100000
"""Where the program starts; what is below is neither loaded nor in the image."""
MEMORY = 512 << 20
"""Bytes of memory; boot.s has it too."""
_JOB = 0x108000
_LIBRARY = 0x200000
_PAGE = 4096
_MOST_BUFFERS = 16
_CONTEXT_BYTES = 256
# Types of relocations that libraries of plain C functions have.
_ABSOLUTE, _GLOBAL, _SLOT, _RELATIVE = 1, 6, 7, 8
_MODULE = 16  # of variables of a thread: here the address of those of the only one


def make_image(
    program: Path,
    library: Path,
    prefix: str,
    shape: tuple[int, int],
    inputs: Sequence[np.ndarray],
    outputs: Sequence[int],
    printed: bool,
) -> bytes:
    """Lay out one call of a library.

    Parameters
    ----------
    program
        What machine.c was linked to.
    library
        What `ibert compile --runtime none` wrote for an x86-64 target.
    prefix
        What its C names begin with.
    shape
        Batch and sequence length.
    inputs
        Arrays in the library's order and types.
    outputs
        Size of each output in bytes.
    printed
        Whether the program prints the outputs.

    Returns
    -------
    bytes
        Memory from `BASE` on; zeros follow.

    Raises
    ------
    ValueError
        If the library needs what the PC has not: another function than memset and memcpy, or more
        memory.
    """
    memory = bytearray(_LIBRARY - BASE)
    with program.open("rb") as stream:
        elf = ELFFile(stream)
        helpers = _addresses(elf, ".symtab")
        for segment in elf.iter_segments("PT_LOAD"):
            place = segment["p_vaddr"] - BASE
            if place >= 0:  # the first holds headers
                memory[place : place + segment["p_filesz"]] = segment.data()
    with library.open("rb") as stream:
        elf = ELFFile(stream)
        memory += _loaded(elf, helpers)
        functions = {name: _LIBRARY + at for name, at in _addresses(elf, ".dynsym").items()}
    buffers: list[tuple[int, int]] = []
    for array in inputs:
        memory += bytes(-len(memory) % _PAGE)
        buffers.append((BASE + len(memory), array.nbytes))
        memory += np.ascontiguousarray(array).tobytes()
    free = BASE + len(memory)
    places = []
    for size in (*outputs, _CONTEXT_BYTES, 0):  # the arena last: the rest is its
        free += -free % _PAGE
        places.append(free)
        free += size
    *results, context, arena = places
    buffers += zip(results, outputs, strict=True)
    if arena >= MEMORY or len(buffers) > _MOST_BUFFERS:
        raise ValueError(f"{library}: {arena} bytes and {len(buffers)} buffers are too much")
    names = ("abi_version", "find_shape", "fingerprint", "init", "run")
    job = struct.pack(
        "<5Q3Q5q",
        *(functions.get(f"{prefix}_{name}", 0) for name in names),
        *(context, arena, MEMORY - arena),
        *(*shape, len(inputs), len(outputs), printed),
    )
    for column in zip(*buffers, strict=True):
        job += struct.pack(f"<{_MOST_BUFFERS}Q", *column, *([0] * (_MOST_BUFFERS - len(buffers))))
    memory[_JOB - BASE : _JOB - BASE + len(job)] = job
    return bytes(memory)


def _addresses(elf: ELFFile, table: str) -> dict[str, int]:
    """Value of every symbol that is defined."""
    symbols = elf.get_section_by_name(table).iter_symbols()
    return {one.name: one["st_value"] for one in symbols if one["st_shndx"] != "SHN_UNDEF"}


def _loaded(elf: ELFFile, helpers: dict[str, int]) -> bytearray:
    """The library's segments at `_LIBRARY`, with the addresses that it leaves to a loader."""
    segments = list(elf.iter_segments("PT_LOAD"))
    memory = bytearray(max(one["p_vaddr"] + one["p_memsz"] for one in segments))
    for segment in segments:
        begin = segment["p_vaddr"]
        memory[begin : begin + segment["p_filesz"]] = segment.data()
    variables = 0
    for segment in elf.iter_segments("PT_TLS"):
        memory += bytes(-len(memory) % _PAGE)
        variables = _LIBRARY + len(memory)
        memory += segment.data().ljust(segment["p_memsz"], b"\0")
    symbols = elf.get_section_by_name(".dynsym")
    for section in elf.iter_sections("SHT_RELA"):
        for relocation in section.iter_relocations():
            kind, place = relocation["r_info_type"], relocation["r_offset"]
            if kind == _RELATIVE:
                value = _LIBRARY + relocation["r_addend"]
            elif kind == _MODULE:
                value = variables
            elif kind in (_GLOBAL, _SLOT, _ABSOLUTE):
                symbol = symbols.get_symbol(relocation["r_info_sym"])
                value = _address(symbol, helpers)
                value += relocation["r_addend"] if kind == _ABSOLUTE else 0
            else:
                raise ValueError(f"relocation of type {kind} at {place:#x}")
            memory[place : place + 8] = struct.pack("<Q", value)
    return memory


def _address(symbol: Any, helpers: dict[str, int]) -> int:
    if symbol["st_shndx"] != "SHN_UNDEF":
        return _LIBRARY + int(symbol["st_value"])
    if symbol.name in helpers:
        return helpers[symbol.name]
    if symbol["st_info"]["bind"] == "STB_WEAK":
        return 0
    raise ValueError(f"the emulated PC has no function {symbol.name}")
