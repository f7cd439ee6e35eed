"""Whether a linked file is for the processor that it was meant for: its ELF header and attributes.

A linker takes objects of a wrong kind more often than one would think (a soft-float object in a
hard-float library, a C library without its float ABI), and the board's own loader may refuse the
result without a word, so the header is read before anything is promised.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ibert_tvm.common.errors import TargetError

from .description import TargetDescription

# Flags of ARM's ELF header (ELF for the ARM architecture, section 5.2).
_FLOAT_SOFT, _FLOAT_HARD = 0x200, 0x400
_CLASSES = {"EM_ARM": 32, "EM_AARCH64": 64, "EM_X86_64": 64}
# Build attributes (Addenda to the ABI for the ARM architecture, section 3.3).
_FLOAT_UNIT, _VECTOR_UNIT, _FLOAT_ARGUMENTS = (
    "TAG_FP_ARCH",
    "TAG_ADVANCED_SIMD_ARCH",
    "TAG_ABI_VFP_ARGS",
)


@dataclass(frozen=True)
class ElfFacts:
    """What a file's headers say about the machine that it is for.

    Attributes
    ----------
    machine
        ``e_machine``, for example ``EM_AARCH64``.
    bits
        32 or 64.
    little_endian
        Order of bytes.
    float_abi
        ``"hard"`` or ``"soft"`` for 32-bit ARM, from the header's flags, or from the attributes
        where the flags say nothing; empty for others.
    float_unit, vector_unit
        Whether 32-bit ARM's attributes allow floating-point and vector instructions.
    """

    machine: str
    bits: int
    little_endian: bool
    float_abi: str = ""
    float_unit: bool = False
    vector_unit: bool = False


def elf_facts(path: Path) -> ElfFacts:
    """Read the facts of an ELF file.

    Parameters
    ----------
    path
        A relocatable object, a library or a program.

    Returns
    -------
    ElfFacts

    Raises
    ------
    elftools.common.exceptions.ELFError
        If it is none of them.
    """
    from elftools.elf.elffile import ELFFile

    with path.open("rb") as stream:
        elf = ELFFile(stream)
        machine, bits, little = elf["e_machine"], elf.elfclass, elf.little_endian
        if machine != "EM_ARM":
            return ElfFacts(machine, bits, little)
        attributes = _attributes(elf.get_section_by_name(".ARM.attributes"))
        hard = elf["e_flags"] & _FLOAT_HARD or attributes.get(_FLOAT_ARGUMENTS)
        return ElfFacts(
            machine,
            bits,
            little,
            "hard" if hard and not elf["e_flags"] & _FLOAT_SOFT else "soft",
            bool(attributes.get(_FLOAT_UNIT)),
            bool(attributes.get(_VECTOR_UNIT)),
        )


def check_elf(path: Path, description: TargetDescription) -> None:
    """Refuse a linked file that is for another processor, or for another way of passing floats.

    Parameters
    ----------
    path
        The file.
    description
        What it was linked for.

    Raises
    ------
    TargetError
        With the first thing that the file says and that was not expected.
    """
    why = next(_differences(elf_facts(path), description), None)
    if why is not None:
        raise TargetError(
            what="the linked library is for another processor",
            where=f"target {description.name!r}, {path.name}",
            why=why,
            todo="set CC to the compiler of the target, or unset it",
        )


def _differences(facts: ElfFacts, description: TargetDescription) -> Iterator[str]:
    if facts.machine != description.elf_machine:
        yield f"its ELF machine is {facts.machine}, expected {description.elf_machine}"
    bits = _CLASSES.get(description.elf_machine, facts.bits)
    if facts.bits != bits:
        yield f"its ELF class is {facts.bits} bits, expected {bits}"
    if not facts.little_endian:
        yield "its bytes are in big-endian order, expected little-endian"
    if facts.float_abi != description.float_abi:
        yield f"its float ABI is {facts.float_abi}, expected {description.float_abi}"
    if description.float_abi == "soft" and (facts.float_unit or facts.vector_unit):
        unit = "a floating-point unit" if facts.float_unit else "a vector unit"
        yield f"its attributes ask for {unit}, which the target does not have"


def _attributes(section: Any) -> Mapping[str, Any]:
    """Build attributes of the whole file, by name of the tag."""
    found: dict[str, Any] = {}
    if section is None:
        return found
    for subsection in section.iter_subsections("aeabi"):
        for part in subsection.iter_subsubsections("TAG_FILE"):
            found |= {attribute.tag: attribute.value for attribute in part.iter_attributes()}
    return found
