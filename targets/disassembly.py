"""The instructions of objects, libraries and images, as the toolchain's objdump prints them."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from .description import TargetDescription
from .executable import Image, code_file
from .linking import Tools
from .machines import Function, Instruction

# Labels of compilers within a function begin with .L; objects of RISC-V keep them.
_FUNCTION = re.compile(r"^([0-9a-f]+) <(?!\.L)(.+)>:$")
_LINE = re.compile(r"^\s*([0-9a-f]+):\t(\S*)[ \t]*(.*)$")
_PREFIX = re.compile(
    r"rep(?:n?[ze])?|lock|bnd|notrack|data16|addr32|[c-gs]s|rex\S*|xacquire|xrelease|\{\w+\}"
)
_DATA = {".byte": 1, ".short": 2, ".hword": 2, ".word": 4, ".long": 4}


def disassemble(paths: Sequence[Path], description: TargetDescription) -> str:
    """What objdump prints of every executable section of ELF files, for `parse`.

    Raises
    ------
    TargetError
        If the target's disassembler is missing or fails.
    """
    tools = Tools(description)
    command = [tools.binary("objdump"), "-d", "-z", "--no-show-raw-insn"]
    command += description.machine.objdump_options(description.llvm_features)
    command += (str(path.resolve()) for path in paths)
    todo = "check the toolchain; see `ibert doctor`"
    return tools.run(command, None, "cannot disassemble the code", todo)


def disassemble_image(image: Image, description: TargetDescription) -> str:
    """What objdump prints of the segments of an image, for `parse`.

    Raises
    ------
    TargetError
        If the target's disassembler is missing or fails.
    """
    if not image.segments:
        return ""
    with tempfile.TemporaryDirectory(prefix="ibert-audit-") as folder:
        path = Path(folder) / "code"
        path.write_bytes(code_file(image, description.machine))
        return disassemble([path], description)


def parse(listing: str) -> Iterator[Function]:
    """Functions of a listing; instructions in front of the first belong to one called ``?``."""
    current: Function | None = None
    for line in listing.splitlines():
        if label := _FUNCTION.match(line):
            if current is not None:
                yield current
            current = Function(label[2], int(label[1], 16))
        elif found := _LINE.match(line):
            address, mnemonic, rest = int(found[1], 16), found[2], found[3]
            current = current or Function("?", address)
            if mnemonic in _DATA:
                current.data[address] = _DATA[mnemonic], int(rest.split()[0].rstrip(","), 16)
            else:
                current.instructions.append(_instruction(address, mnemonic, rest))
    if current is not None:
        yield current


def is_unknown(one: Instruction) -> bool:
    """Whether the disassembler could not tell what instruction it is."""
    unknown = one.mnemonic in ("", ".inst", "(bad)") or "<unknown>" in one.text
    unknown = unknown or (not one.operands and _PREFIX.fullmatch(one.mnemonic) is not None)
    return unknown or "undefined" in one.text.lower()


def _instruction(address: int, mnemonic: str, rest: str) -> Instruction:
    operands, _, comment = re.sub(r"\s*[@;]\s*", "\0", rest, count=1).partition("\0")
    text = f"{mnemonic} {rest}".strip()
    operands = operands.strip()
    while _PREFIX.fullmatch(mnemonic) and operands:
        mnemonic, _, operands = operands.partition(" ")
    return Instruction(address, mnemonic, operands.lstrip(), _target(operands, comment), text)


def _target(operands: str, comment: str) -> int | None:
    """Address in a comment such as ``(8024 <f+0x24>)``, or of a branch, ``8024 <f+0x24>``."""
    if found := re.match(r"\(?([0-9a-f]+) <", comment):
        return int(found[1], 16)
    if found := re.search(r"(?:^|[ ,])([0-9a-f]+) <", operands):
        return int(found[1], 16)
    return None
