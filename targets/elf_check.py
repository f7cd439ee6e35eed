"""Whether a linked file is for the processor that it was meant for: its ELF header and attributes.

A linker takes objects of a wrong kind more often than one would think (a soft-float object in a
hard-float library, a C library without its float ABI), and the board's own loader may refuse the
result without a word, so the header is read before anything is promised.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from ibert_tvm.common.errors import TargetError

from .description import TargetDescription
from .elf import opened
from .machines import FloatUse, Machine


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
    floats
        Convention and units of floating point; empty for machines whose files do not tell.
    """

    machine: str
    bits: int
    little_endian: bool
    floats: FloatUse = field(default_factory=FloatUse)


def elf_facts(path: Path, expected: Machine) -> ElfFacts:
    """Read the facts of an ELF file.

    Parameters
    ----------
    path
        A relocatable object, a library or a program.
    expected
        What it should be for; of files for other machines, `floats` is not read.

    Raises
    ------
    elftools.common.exceptions.ELFError
        If it is none of them.
    """
    with opened(path) as elf:
        facts = ElfFacts(elf["e_machine"], elf.elfclass, elf.little_endian)
        if facts.machine != expected.elf_machine or expected.float_use is None:
            return facts
        return replace(facts, floats=expected.float_use(elf))


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
    why = next(_differences(elf_facts(path, description.machine), description), None)
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
    if facts.bits != description.machine.bits:
        yield f"its ELF class is {facts.bits} bits, expected {description.machine.bits}"
    if not facts.little_endian:
        yield "its bytes are in big-endian order, expected little-endian"
    floats = facts.floats
    if floats.abi != description.float_abi:
        yield f"its float ABI is {floats.abi}, expected {description.float_abi}"
    if description.float_abi == "soft" and (floats.unit or floats.vectors):
        unit = "a floating-point unit" if floats.unit else "a vector unit"
        yield f"its attributes ask for {unit}, which the target does not have"
