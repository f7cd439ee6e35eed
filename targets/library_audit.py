"""Every instruction of libraries and objects, looked at for floating point.

The disassembler is that of the target's binutils, which tells code from data by the symbols of the
file. What it cannot decode is a finding, not a pass.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .description import TargetDescription
from .disassembly import disassemble, is_unknown, parse
from .elf import opened, symbols
from .machines import Instruction

_PREFIX = re.compile(
    r"rep(?:n?[ze])?|lock|bnd|notrack|data16|addr32|[c-gs]s|rex\S*|xacquire|xrelease"
)


@dataclass(frozen=True)
class LibraryAudit:
    """What was found in code.

    Attributes
    ----------
    instructions
        How many were looked at.
    findings
        What computes with floating-point numbers, or is no instruction: a line each, with function,
        layer where it is known, address and text; and library functions of floating point that are
        there or called.
    needed
        Shared libraries that it is linked with, which were not looked at.
    """

    instructions: int
    findings: tuple[str, ...]
    needed: tuple[str, ...] = ()


def audit_library(
    path: Path, description: TargetDescription, layers: Mapping[str, str] | None = None
) -> LibraryAudit:
    """Disassemble every executable section of a library for a processor.

    Parameters
    ----------
    path
        ELF file, which is not run.
    description
        Its target.
    layers
        By kernel the layer that it computes.

    Raises
    ------
    TargetError
        If the target's disassembler is missing or fails.
    """
    return audit_code([path], description, layers)


def audit_code(
    paths: Sequence[Path], description: TargetDescription, layers: Mapping[str, str] | None = None
) -> LibraryAudit:
    """Disassemble every executable section of several ELF files: objects, images or libraries.

    Parameters, results and errors are those of `audit_library`.
    """
    audit = read_listing(disassemble(paths, description), description, layers)
    names = {one.name for path in paths for one in symbols(path, ".symtab", ".dynsym")}
    helpers = sorted(name for name in names if description.machine.is_float_function(name))
    needed = tuple(name for path in paths for name in _needed(path))
    found = tuple(f"{name}: a library function of floating point" for name in helpers)
    return LibraryAudit(audit.instructions, (*audit.findings, *found), needed)


def read_listing(
    listing: str, description: TargetDescription, layers: Mapping[str, str] | None = None
) -> LibraryAudit:
    """Audit the text of ``objdump -d``.

    Parameters
    ----------
    listing
        In Intel's syntax for x86.
    description
        The target.
    layers
        By kernel the layer that it computes.

    Returns
    -------
    LibraryAudit
        Code without an instruction is a finding.
    """
    count, findings = 0, []
    for function in parse(listing):
        name = _with_layer(function.name, layers or {})
        count += len(function.instructions)
        for one in function.instructions:
            if is_unknown(one):
                findings.append(f"{name} at 0x{one.address:x}: no instruction: {one.text}")
            elif computes_floats(one, description):
                findings.append(f"{name} at 0x{one.address:x}: {one.text}")
    if not count:
        findings.append("there is no code")
    return LibraryAudit(count, tuple(findings))


def computes_floats(one: Instruction, description: TargetDescription) -> bool:
    """Whether an instruction computes with floating-point numbers, by the rules of its machine."""
    words = one.text.split()
    while len(words) > 1 and _PREFIX.fullmatch(words[0]):
        words.pop(0)
    mnemonic, operands = words[0].lower(), " ".join(words[1:])
    machine = description.machine
    return machine.is_floating_point(mnemonic, operands, description.has_float_registers)


def _with_layer(function: str, layers: Mapping[str, str]) -> str:
    """A function as findings name it; what a kernel is split into begins with its name.

    Without runtime, it is called ``PREFIX_kernel_NAME``.
    """
    names = (function, function.partition("_kernel_")[2])
    kernels: Iterable[str] = (name for name in layers if any(n.startswith(name) for n in names))
    kernel = max(kernels, key=len, default="")
    return f"{function} of layer {layers[kernel]}" if kernel else function


def _needed(path: Path) -> list[str]:
    """The libraries that a file is linked with."""
    with opened(path) as elf:
        dynamic = elf.get_section_by_name(".dynamic")
        return [tag.needed for tag in dynamic.iter_tags("DT_NEEDED")] if dynamic else []
