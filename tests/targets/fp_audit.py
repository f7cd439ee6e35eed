"""Find floating-point instructions in an x86-64 library.

Integer data lives in vector registers too, so what counts is what an instruction does, not which
registers it names: moves, logic, shuffles, blends and broadcasts are benign under any name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from elftools.elf.elffile import ELFFile

_EXECUTABLE = 0x4  # SHF_EXECINSTR
_TYPE = r"(?:[sp][sdh]|nepbf16|pbf16)"
_FLOATING = re.compile(
    # arithmetic, comparison, minimum, square root, rounding, fused multiply-add
    r"v?(?:add|sub|mul|div|sqrt|rsqrt(?:14|28)?|rcp(?:14|28)?|min|max|cmp\w*|u?comi|round|rndscale"
    r"|reduce|range|fixupimm|getexp|getmant|scalef|addsub|hadd|hsub|dp|exp2|fpclass"
    rf"|fn?m(?:add|sub|addsub|subadd)\d*|fc?m(?:add|ul)c){_TYPE}"
    # conversions from, to and between floats; dot products of bfloat16
    r"|v?cvt\w+|vdpbf16ps|vdpphps"
    # x87, whose mnemonics all begin with f; and its saved state
    r"|f(?!xsave|xrstor|emms)\w+"
)


def is_floating_point(mnemonic: str) -> bool:
    """Tell whether an x86 instruction computes with floating-point numbers."""
    return _FLOATING.fullmatch(mnemonic) is not None


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
