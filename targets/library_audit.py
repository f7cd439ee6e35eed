"""Every instruction of a linked library, looked at for floating point.

The disassembler is that of the target's binutils, which tells code from data by the symbols of the
file. What it cannot decode is a finding, not a pass.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from .binutils import binary_tool
from .description import TargetDescription
from .fp_rules import is_float_helper, is_floating_point
from .linking import run_tool

_LABEL = re.compile(r"^[0-9a-f]+ <(.+)>:$")
_LINE = re.compile(r"^\s*([0-9a-f]+):\t(\S*)[ \t]*(.*)$")
_DATA = re.compile(r"\.(?:word|short|byte|long|hword)")
_PREFIX = re.compile(
    r"rep(?:n?[ze])?|lock|bnd|notrack|data16|addr32|[c-gs]s|rex\S*|xacquire|xrelease"
)
_UNKNOWN = ("", ".inst", "(bad)")


@dataclass(frozen=True)
class LibraryAudit:
    """What was found in a library's code.

    Attributes
    ----------
    instructions
        How many were looked at.
    findings
        What computes with floating-point numbers, or is no instruction: a line each, with function,
        address and text; and library functions of floating point that are there or called.
    """

    instructions: int
    findings: tuple[str, ...]


def audit_library(path: Path, description: TargetDescription) -> LibraryAudit:
    """Disassemble every executable section of a library for a processor.

    Parameters
    ----------
    path
        ELF file, which is not run.
    description
        Its target.

    Returns
    -------
    LibraryAudit

    Raises
    ------
    TargetError
        If the target's disassembler is missing or fails.
    """
    command = [binary_tool(description, "objdump"), "-d", "-z", "--no-show-raw-insn"]
    if description.elf_machine == "EM_X86_64":
        command += ["-M", "intel"]
    todo = "check the toolchain; see `ibert doctor`"
    listing = run_tool(
        [*command, str(path.resolve())], None, "cannot disassemble the library", description, todo
    )
    audit = read_listing(listing, description)
    helpers = sorted(name for name in _symbols(path) if is_float_helper(name))
    found = tuple(f"{name}: a library function of floating point" for name in helpers)
    return LibraryAudit(audit.instructions, (*audit.findings, *found))


def read_listing(listing: str, description: TargetDescription) -> LibraryAudit:
    """Audit the text of ``objdump -d``.

    Parameters
    ----------
    listing
        In Intel's syntax for x86.
    description
        The target.

    Returns
    -------
    LibraryAudit
        Code without an instruction is a finding.
    """
    has_fpu = description.float_abi != "soft"
    function, count, findings = "?", 0, []
    for line in listing.splitlines():
        if label := _LABEL.match(line):
            function = label[1]
        if (found := _LINE.match(line)) is None or _DATA.fullmatch(found[2]):
            continue
        count += 1
        address, text = found[1], f"{found[2]} {found[3]}".strip()
        words = text.split()
        while len(words) > 1 and _PREFIX.fullmatch(words[0]):
            words.pop(0)
        mnemonic, operands = (words[0], " ".join(words[1:])) if words else ("", "")
        if mnemonic in _UNKNOWN or "<unknown>" in text or "undefined" in text.lower():
            findings.append(f"{function} at 0x{address}: no instruction: {text}")
        elif is_floating_point(description.elf_machine, mnemonic, operands, has_fpu):
            findings.append(f"{function} at 0x{address}: {text}")
    if not count:
        findings.append("there is no code")
    return LibraryAudit(count, tuple(findings))


def _symbols(path: Path) -> set[str]:
    """Names of everything that a library holds or calls."""
    from elftools.elf.elffile import ELFFile

    with path.open("rb") as stream:
        tables = map(ELFFile(stream).get_section_by_name, (".symtab", ".dynsym"))
        return {symbol.name for table in tables if table for symbol in table.iter_symbols()}
