"""Reading compiled device code: instructions as nvdisasm prints them, resources from ELF headers.

Beside what computes with floating-point numbers, every opcode that may stand in a kernel is listed
here: an audit that met an instruction it does not know would otherwise take it for an integer one.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from ..elf import opened, symbols

# Opcodes of integer arithmetic, data movement and control on compute capability 7.5 to 12.1 (CUDA
# Binary Utilities, "Instruction Set Reference"), without modifiers. What begins with U works on
# uniform registers.
_INTEGER = """
    BMMA BMSK BREV FLO IABS IADD IADD3 IADD32I IDP IDP4A IMAD IMMA IMNMX IMUL IMUL32I ISCADD
    ISCADD32I ISETP LEA LOP LOP3 LOP32I POPC SHF SHL SHR VABSDIFF VABSDIFF4 VIADD VIADDMNMX VIMNMX
    VIMNMX3 UBMSK UBREV UFLO UIABS UIADD UIADD3 UIMAD UIMNMX UISETP ULEA ULOP ULOP3 ULOP32I UPOPC
    USHF USHL USHR UVIADD UVIADDMNMX UVIMNMX UVIMNMX3 IGMMA
    I2I I2IP MOV MOV32I MOVM PRMT SEL SGXT SHFL UMOV UPRMT USEL USGXT
    R2UR UR2UP UP2UR R2P P2R CS2R CS2UR S2R S2UR B2R R2B
    PLOP3 PSETP UPLOP3 UPSETP VOTE VOTEU MATCH REDUX CREDUX ELECT
    LD LDC LDCU LDG LDGDEPBAR LDGSTS LDL LDS LDSM QSPC ST STG STL STS STSM ULDC
    ATOM ATOMG ATOMS RED REDG
    CCTL CCTLL ERRBAR CGAERRBAR MEMBAR FENCE SYNCS ARRIVES ACQBULK
    BAR BMOV BPT BRA BREAK BRX BRXU BSSY BSYNC CALL DEPBAR ENDCOLLECTIVE EXIT JMP JMX KILL LEPC
    NANOSLEEP NOP PREEXIT RET RTT WARPSYNC WARPGROUP YIELD
"""
INTEGER_OPCODES = frozenset(_INTEGER.split())
# Products of matrices on tensor cores, and what goes to and comes from a thread's local memory.
MATRIX_OPCODES = frozenset(("IMMA", "IGMMA"))
LOCAL_OPCODES = frozenset(("LDL", "STL"))

_FLOAT = re.compile(
    # Arithmetic, comparison, selection, rounding and conversion of 32 bits begin with f, on the
    # uniform path with uf, except the search for the leading one (flo) and a fence.
    r"u?f(?!lo$|ence$)\w+"
    # 16 bits (h), 64 bits (d), 8 bits (q)
    r"|v?h\w+|d(?:add|fma|mul|setp?|mma|mnmx)|q(?!spc$)\w+"
    # conversions from integers, reciprocals and roots, matrix products of short floats
    r"|u?i2fp?|u?mufu|omma|utc\w*[fhoq]mma"
)
# Atomics and reductions name the type of their operands as a modifier.
_FLOAT_TYPE = re.compile(r"(?:b?f(?:16|32|64)\w*|tf32|e[2345]m\w+|ftz)")

_SECTION = re.compile(r"^\s*\.section\s+\.text\.([^,\s]+)")
_INSTRUCTION = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)\s*(.*?)\s*;")
# Of .nv.info: attributes with a value per function, and how one with a payload is marked.
_SIZED_VALUE, _REGISTERS, _STACK = 4, 0x2F, 0x12


def is_floating_point(mnemonic: str) -> bool:
    """Whether an instruction, with all its modifiers, computes with floating-point numbers."""
    opcode, *modifiers = mnemonic.lower().split(".")
    return _FLOAT.fullmatch(opcode) is not None or any(map(_FLOAT_TYPE.fullmatch, modifiers))


@dataclass(frozen=True)
class Instruction:
    """One instruction.

    Attributes
    ----------
    offset
        Bytes from the beginning of its function.
    mnemonic
        Opcode and modifiers, ``IMMA.16832.S8.S8``.
    operands
        The rest of its text.
    """

    offset: int
    mnemonic: str
    operands: str

    @property
    def opcode(self) -> str:
        """Its first word, without modifiers."""
        return self.mnemonic.partition(".")[0]

    def __str__(self) -> str:
        return f"{self.mnemonic} {self.operands}".strip()


@dataclass(frozen=True)
class Resources:
    """What a kernel takes of a multiprocessor.

    Attributes
    ----------
    registers
        32-bit registers per thread.
    shared_bytes
        Static shared memory per block; what a launch asks for comes on top.
    stack_bytes
        Local memory per thread: spilled registers, and arrays with a variable index.
    """

    registers: int
    shared_bytes: int
    stack_bytes: int


def functions(disassembly: str) -> Iterator[tuple[str, list[Instruction]]]:
    """Functions of a disassembled image.

    Parameters
    ----------
    disassembly
        What ``nvdisasm -c`` printed.

    Yields
    ------
    name, instructions
        Kernels, and functions that were not inlined.
    """
    name: str | None = None
    found: list[Instruction] = []
    for line in disassembly.splitlines():
        section = _SECTION.match(line)
        if section is not None:
            if name is not None:
                yield name, found
            name, found = section[1], []
            continue
        match = _INSTRUCTION.match(line)
        if match is not None:
            found.append(Instruction(int(match[1], 16), match[2], match[3]))
    if name is not None:
        yield name, found


def resources(image: bytes) -> dict[str, Resources]:
    """Resources of every kernel of an image.

    Parameters
    ----------
    image
        A cubin: the code of one architecture.

    Returns
    -------
    dict of str to Resources
        By name of the kernel.
    """
    names = [symbol.name for symbol in symbols(image)]
    values: dict[int, dict[str, int]] = {_REGISTERS: {}, _STACK: {}}
    with opened(image) as elf:
        for attribute, payload in _attributes(elf.get_section_by_name(".nv.info").data()):
            if attribute in values:
                index, value = struct.unpack("<II", payload)
                values[attribute][names[index]] = value
        sizes = {section.name: int(section["sh_size"]) for section in elf.iter_sections()}
    return {
        name: Resources(registers, sizes.get(f".nv.shared.{name}", 0), values[_STACK].get(name, 0))
        for name, registers in values[_REGISTERS].items()
        if f".text.{name}" in sizes
    }


def code_bytes(image: bytes) -> int:
    """Bytes of instructions in an image."""
    with opened(image) as elf:
        code = (s for s in elf.iter_sections() if s.name.startswith(".text."))
        return sum(int(section["sh_size"]) for section in code)


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Attributes of a section .nv.info that have a payload, and the payload."""
    place = 0
    while place + 4 <= len(data):
        kind, attribute, size = struct.unpack_from("<BBH", data, place)
        place += 4
        if kind == _SIZED_VALUE:
            yield attribute, data[place : place + size]
            place += size
