"""Every instruction of libraries and objects, looked at for floating point.

The disassembler is that of the target's binutils, which tells code from data by the symbols of the
file. What it cannot decode is a finding, not a pass.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .bare_metal.disassembly import has_integer_vectors
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

    Returns
    -------
    LibraryAudit

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
    command = [binary_tool(description, "objdump"), "-d", "-z", "--no-show-raw-insn"]
    if description.elf_machine == "EM_X86_64":
        command += ["-M", "intel"]
    if has_integer_vectors(description):
        # The attributes of a file alone do not make objdump know the vector instructions.
        command.append("-marmv8.1-m.main")
    todo = "check the toolchain; see `ibert doctor`"
    files = [str(path.resolve()) for path in paths]
    listing = run_tool([*command, *files], None, "cannot disassemble the code", description, todo)
    audit = read_listing(listing, description, layers)
    symbols: set[str] = set()
    needed: list[str] = []
    for path in paths:
        named, linked = _symbols(path)
        symbols |= named
        needed += linked
    helpers = sorted(name for name in symbols if is_float_helper(name))
    found = tuple(f"{name}: a library function of floating point" for name in helpers)
    return LibraryAudit(audit.instructions, (*audit.findings, *found), tuple(needed))


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
    # Without a unit for floats a move of its registers is one instruction too many; vectors of
    # integers lie in the same registers.
    has_registers = description.float_abi != "soft" or has_integer_vectors(description)
    layers = layers or {}
    function, count, findings = "?", 0, []
    for line in listing.splitlines():
        if label := _LABEL.match(line):
            function = _with_layer(label[1], layers)
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
        elif is_floating_point(description.elf_machine, mnemonic, operands, has_registers):
            findings.append(f"{function} at 0x{address}: {text}")
    if not count:
        findings.append("there is no code")
    return LibraryAudit(count, tuple(findings))


def _with_layer(function: str, layers: Mapping[str, str]) -> str:
    """A function as findings name it; what a kernel is split into begins with its name.

    Without runtime, it is called ``PREFIX_kernel_NAME``.
    """
    names = (function, function.partition("_kernel_")[2])
    kernels: Iterable[str] = (name for name in layers if any(n.startswith(name) for n in names))
    kernel = max(kernels, key=len, default="")
    return f"{function} of layer {layers[kernel]}" if kernel else function


def _symbols(path: Path) -> tuple[set[str], list[str]]:
    """Names of everything that a file holds or calls, and the libraries that it is linked with."""
    from elftools.elf.elffile import ELFFile

    with path.open("rb") as stream:
        elf = ELFFile(stream)
        tables = map(elf.get_section_by_name, (".symtab", ".dynsym"))
        names = {symbol.name for table in tables if table for symbol in table.iter_symbols()}
        dynamic = elf.get_section_by_name(".dynamic")
        tags = [] if dynamic is None else dynamic.iter_tags("DT_NEEDED")
        return names, [tag.needed for tag in tags]
