"""Every instruction of libraries and objects, looked at for floating point.

The disassembler is that of the target's binutils. What it cannot decode is a finding, not a pass;
so is what would let other bytes run than those that it decoded (`executable`, `control_flow`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from .control_flow import ControlFlow
from .description import TargetDescription
from .disassembly import disassemble, disassemble_image, is_unknown, parse
from .elf import is_relocatable, symbols
from .executable import Image, read_image
from .machines import Instruction


@dataclass(frozen=True)
class LibraryAudit:
    """What was found in code.

    Attributes
    ----------
    instructions
        How many were looked at.
    findings
        What computes with floating-point numbers, is no instruction, or goes where nothing was
        decoded: a line each, with function, layer where it is known, address and text; headers that
        make code writable or data executable; and library functions that are there or called.
    needed
        Shared libraries that it is linked with, which were not looked at.
    """

    instructions: int
    findings: tuple[str, ...]
    needed: tuple[str, ...] = ()


def audit_library(
    path: Path, description: TargetDescription, layers: Mapping[str, str] | None = None
) -> LibraryAudit:
    """Disassemble all that a loader makes executable of a library for a processor.

    Parameters
    ----------
    path
        ELF file, which is not run: a library, an image, or a relocatable object, which has no
        segments yet, and of which the executable sections are disassembled.
    description
        Its target.
    layers
        By kernel the layer that it computes.

    Raises
    ------
    TargetError
        If the target's disassembler is missing or fails.
    """
    if is_relocatable(path):
        audit = read_listing(disassemble([path], description), description, layers)
        names = {one.name for one in symbols(path)}
        found = (*audit.findings, *_float_functions(names, description))
        return LibraryAudit(audit.instructions, found)
    image = read_image(path, description.machine)
    code, data = _decoded(image, description)
    wrong = [(one.address, why) for one in code if (why := _wrong(one, description)) is not None]
    wrong += ControlFlow(image, code, data, description.machine.flow).findings()
    found = tuple(
        f"{with_layer(image.function_of(address), layers or {})} at 0x{address:x}: {why}"
        for address, why in sorted(wrong)
    )
    names = {*image.names.values(), *image.imports}
    found += () if code else ("there is no code",)
    found += _float_functions(names, description)
    calls = description.machine.is_call
    found += tuple(
        f"{name}: a function of another library that compiled models do not call"
        for name in sorted(image.imports)
        if not calls(name)
    )
    return LibraryAudit(len(code), (*image.findings, *found), tuple(image.needed))


def _float_functions(names: set[str], description: TargetDescription) -> tuple[str, ...]:
    helpers = sorted(name for name in names if description.machine.is_float_function(name))
    return tuple(f"{name}: a library function of floating point" for name in helpers)


def _decoded(
    image: Image, description: TargetDescription
) -> tuple[list[Instruction], dict[int, tuple[int, int]]]:
    """Instructions, and data between them by address, without zeros for alignment.

    Linkers put these between sections, behind an instruction that does not go on.
    """
    code: list[Instruction] = []
    data: dict[int, tuple[int, int]] = {}
    rows: dict[int, Instruction | tuple[int, int]] = {}
    flow = description.machine.flow
    for function in parse(disassemble_image(image, description)):
        rows.update({one.address: one for one in function.instructions})
        rows.update(function.data)
    for segment in image.segments:
        inside = sorted(address for address in rows if segment.address <= address < segment.end)
        last: Instruction | None = None
        for address, end in itertools.pairwise((*inside, segment.end)):
            row = rows[address]
            zeros = not any(segment.content[address - segment.address : end - segment.address])
            if zeros and image.state_of(address) != "d" and not flow.goes_on(last):
                continue
            if isinstance(row, Instruction):
                code.append(row)
                last = row
            else:
                data[address] = row
                last = None
    return code, data


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
    constants = description.machine.flow.constants
    for function in parse(listing):
        name = with_layer(function.name, layers or {})
        if function.data and not constants:
            findings.append(f"{name} at 0x{min(function.data):x}: no instruction")
        count += len(function.instructions)
        for one in function.instructions:
            if (why := _wrong(one, description)) is not None:
                findings.append(f"{name} at 0x{one.address:x}: {why}")
    if not count:
        findings.append("there is no code")
    return LibraryAudit(count, tuple(findings))


def computes_floats(one: Instruction, description: TargetDescription) -> bool:
    """Whether an instruction computes with floating-point numbers, by the rules of its machine."""
    machine = description.machine
    return machine.is_floating_point(
        one.mnemonic.lower(), one.operands, description.has_float_registers
    )


def _wrong(one: Instruction, description: TargetDescription) -> str | None:
    if is_unknown(one):
        return f"no instruction: {one.text}"
    return one.text if computes_floats(one, description) else None


def with_layer(function: str, layers: Mapping[str, str]) -> str:
    """A function as findings name it; what a kernel is split into begins with its name.

    Without runtime, it is called ``PREFIX_kernel_NAME``.
    """
    names = (function, function.partition("_kernel_")[2])
    kernels: Iterable[str] = (name for name in layers if any(n.startswith(name) for n in names))
    kernel = max(kernels, key=len, default="")
    return f"{function} of layer {layers[kernel]}" if kernel else function
