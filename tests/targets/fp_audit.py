"""Find floating-point instructions in an x86-64 library."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from elftools.elf.elffile import ELFFile

from ibert_tvm.targets.machines.x86_64 import X86_64

_EXECUTABLE = 0x4  # SHF_EXECINSTR


def is_floating_point(mnemonic: str) -> bool:
    """Tell whether an x86 instruction computes with floating-point numbers."""
    return X86_64.is_floating_point(mnemonic, "", True)


def floating_point_instructions(path: Path) -> Iterator[str]:
    """Every floating-point instruction of a library, as ``function: instruction``.

    Raises
    ------
    ValueError
        If an executable section cannot be disassembled to its end.
    """
    import capstone

    machine = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    with path.open("rb") as stream:
        elf = ELFFile(stream)
        symbols = sorted(
            (symbol["st_value"], symbol.name)
            for symbol in elf.get_section_by_name(".symtab").iter_symbols()
            if symbol["st_info"]["type"] == "STT_FUNC"
        )
        for section in elf.iter_sections():
            if not section["sh_flags"] & _EXECUTABLE:
                continue
            start, code = section["sh_addr"], section.data()
            end = start
            for address, size, mnemonic, operands in machine.disasm_lite(code, start):
                end = address + size
                name = mnemonic.rpartition(" ")[2]  # without prefixes such as rep
                if is_floating_point(name):
                    inside = [label for at, label in symbols if at <= address][-1:] or ["?"]
                    yield f"{inside[0]}: {mnemonic} {operands}"
            if end != start + len(code):
                raise ValueError(f"{section.name} of {path} ends in bytes that are no instruction")
