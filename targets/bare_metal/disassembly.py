"""The instructions of a linked image, read from what the toolchain's objdump prints."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ibert_tvm.common.errors import TargetError

from ..binutils import binary_tool
from ..description import TargetDescription
from ..linking import run_tool

_FUNCTION = re.compile(r"^([0-9a-f]+) <(.+)>:$")
_LINE = re.compile(r"^ *([0-9a-f]+):\t(\S+)(?:\t(.*))?$")
_DATA = {".word": 4, ".short": 2, ".byte": 1}


@dataclass(frozen=True)
class Instruction:
    """One instruction; `target` is the address that a comment or a branch names, if any."""

    address: int
    mnemonic: str
    operands: str
    target: int | None = None


@dataclass(frozen=True)
class Function:
    """A function, and the data between its instructions.

    Attributes
    ----------
    name, address
        Its symbol.
    instructions
        In order of address.
    words
        32-bit constants in the code, by address.
    """

    name: str
    address: int
    instructions: list[Instruction] = field(default_factory=list)
    words: dict[int, int] = field(default_factory=dict)


def has_integer_vectors(description: TargetDescription) -> bool:
    """Whether a microcontroller has vector registers, as a Cortex-M55 does."""
    attributes = description.tvm_target.get("mattr")
    return isinstance(attributes, list) and "+mve" in attributes


def disassemble(image: Path, description: TargetDescription) -> list[Function]:
    """Disassemble every executable section of a linked image.

    Parameters
    ----------
    image
        ELF file with symbols.
    description
        Its target, whose toolchain disassembles it.

    Returns
    -------
    list of Function

    Raises
    ------
    TargetError
        If the tool is missing or fails, or something in the code is no instruction of the target.
    """
    command = [binary_tool(description, "objdump"), "-d", "-z", "--no-show-raw-insn"]
    if has_integer_vectors(description):
        # The attributes of an image alone do not make objdump know the vector instructions.
        command.append("-marmv8.1-m.main")
    command.append(str(image))
    todo = "check the toolchain; see `ibert doctor`"
    text = run_tool(command, None, "cannot disassemble the package", description, todo)
    return list(parse(text, description))


def parse(text: str, description: TargetDescription) -> Iterator[Function]:
    """Read the output of ``objdump -d -z --no-show-raw-insn``; errors as for `disassemble`."""
    current: Function | None = None
    for line in text.splitlines():
        if opened := _FUNCTION.match(line):
            if current is not None:
                yield current
            current = Function(opened[2], int(opened[1], 16))
            continue
        found = _LINE.match(line)
        if found is None or current is None:
            continue
        address, mnemonic, rest = int(found[1], 16), found[2], found[3] or ""
        if mnemonic in _DATA:
            if mnemonic == ".word":
                current.words[address] = int(rest.split()[0], 16)
            continue
        if "undefined" in line.lower():
            raise TargetError(
                what="the code holds something that is no instruction",
                where=f"target {description.name!r}, function {current.name} at {address:#x}",
                why=f"the disassembler says: {line.strip()}",
                todo="this is a defect of the compiler or of the disassembler: please report it",
            )
        operands, _, comment = re.sub(r"\s*[@;]\s*", "\0", rest, count=1).partition("\0")
        current.instructions.append(
            Instruction(address, mnemonic, operands.strip(), _target(operands, comment))
        )
    if current is not None:
        yield current


def _target(operands: str, comment: str) -> int | None:
    """Address in a comment such as ``(8024 <f+0x24>)``, or of a branch, ``8024 <f+0x24>``."""
    if found := re.match(r"\(?([0-9a-f]+) <", comment):
        return int(found[1], 16)
    if found := re.search(r"(?:^|[ ,])([0-9a-f]+) <", operands):
        return int(found[1], 16)
    return None
