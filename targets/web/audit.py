"""Every instruction of a module, looked at for floating point, and what a module asks of a page.

A page trusts a module with nothing: it imports no function, so that it can call nothing outside.
Its memory is all that the page gives it, so that workers can share it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ..description import TargetDescription
from ..library_audit import LibraryAudit, computes_floats, with_layer
from ..machines.code import Function, Instruction
from .binary import KINDS, SECTIONS, TYPES, Import, Reader, read_imports, sections
from .opcodes import IMMEDIATES, PLAIN, PREFIXES

_INTEGERS = frozenset({"i32", "i64", "v128"})
_FUNCTION_TYPE = 0x60
_UNKNOWN = "no instruction"
_LONGEST_CHAIN = 16
SHARED, UNSHARED = 3, 1
"""Flags of a memory with a greatest size, which workers can share or cannot."""


class Module:
    """What a linked module holds, read without running it; TargetError where that is nothing.

    Parameters
    ----------
    data
        Its bytes.
    name
        Of its file, for errors.

    Attributes
    ----------
    imports
        What it expects of a page.
    exports
        Name and kind of what a page finds in it.
    functions
        Its code, by name where it says them.
    findings
        Sections and types that compiled models do not have.
    section_bytes
        Sizes of its sections, by name.
    """

    def __init__(self, data: bytes, name: str = "") -> None:
        self.imports: list[Import] = []
        self.exports: dict[str, str] = {}
        self.functions: list[Function] = []
        self.findings: list[str] = []
        self.section_bytes: dict[str, int] = {}
        names: dict[int, str] = {}
        bodies: list[Reader] = []
        for number, part in sections(data, name):
            kind = SECTIONS[number]
            self.section_bytes[kind] = self.section_bytes.get(kind, 0) + len(part.data)
            if kind == "import":
                self.imports += read_imports(part)
            elif kind == "type":
                self._types(part)
            elif kind == "export":
                for _ in part.many():
                    name, what = part.text(), part.byte()
                    part.number()
                    self.exports[name] = KINDS[what] if what < len(KINDS) else str(what)
            elif kind == "code":
                bodies = [part.part() for _ in part.many()]
            elif kind == "global":
                self._globals(part)
            elif kind == "custom" and part.text() == "name":
                names = _function_names(part)
            elif kind in ("memory", "tag"):
                self.findings.append(f"there is a section of kind {kind}")
        imported = sum(one.kind == "function" for one in self.imports)
        for index, body in enumerate(bodies, imported):
            title = names.get(index, f"function {index}")
            self.functions.append(Function(title, index, list(self._code(title, body))))

    @property
    def pages(self) -> int:
        """Least number of pages of 64 KiB of the memory that it expects."""
        return next((one.limits[1] for one in self.imports if one.limits), 0)

    def _value(self, what: str, number: int) -> None:
        kind = TYPES.get(number, f"0x{number:x}")
        if kind not in _INTEGERS:
            self.findings.append(f"{what} has a value of type {kind}")

    def _types(self, part: Reader) -> None:
        for index in part.many():
            if part.byte() != _FUNCTION_TYPE:
                raise part.wrong("a type is none of a function")
            for _ in range(2):  # arguments, results
                for _ in part.many():
                    self._value(f"type {index}", part.byte())

    def _globals(self, part: Reader) -> None:
        for index in part.many():
            self._value(f"global {index}", part.byte())
            part.byte()  # whether it can be written
            for one in _instructions(part):
                if one.mnemonic == "end":
                    break

    def _code(self, title: str, body: Reader) -> Iterator[Instruction]:
        for _ in body.many():
            body.number()  # so many locals of one type
            self._value(f"a local of {title}", body.byte())
        yield from _instructions(body)


def _function_names(part: Reader) -> dict[int, str]:
    """The part of functions of a section of names."""
    while not part.done():
        kind, inner = part.byte(), part.part()
        if kind == 1:
            return {inner.number(): inner.text() for _ in inner.many()}
    return {}


def _instructions(body: Reader) -> Iterator[Instruction]:
    """Instructions up to the end; the first that is unknown is the last."""
    while not body.done():
        start, number = body.at, body.byte()
        table, shown = PLAIN, f"{number:#x}"
        if number in PREFIXES:
            table, number = PREFIXES[number], body.number()
            shown += f" {number:#x}"
        if number not in table:
            yield Instruction(start, "", "", text=f"{_UNKNOWN} {shown}")
            return
        name, immediate = table[number]
        operands = IMMEDIATES[immediate](body)
        yield Instruction(start, name, operands, text=f"{name} {operands}".rstrip())


def stack_bytes(module: Module) -> int:
    """Bytes of the stack that a chain of calls may take, of up to 16 functions without recursion.

    Functions begin with their frame: the stack's pointer, less a number.
    """
    frames = [0]
    for function in module.functions:
        code = function.instructions
        for pointer, size, change in zip(code, code[1:], code[2:], strict=False):
            names = (pointer.mnemonic, size.mnemonic, change.mnemonic)
            if names == ("global.get", "i32.const", "i32.sub") and pointer.operands == "0":
                frames.append(int(size.operands))
                break
    return sum(sorted(frames)[-_LONGEST_CHAIN:])


def audit_module(
    path: Path,
    description: TargetDescription,
    exports: Sequence[str],
    layers: Mapping[str, str] | None = None,
) -> LibraryAudit:
    """Decode the code of a module, and check what it shares with a page.

    Parameters
    ----------
    path
        The module, which is not run.
    description
        Its target.
    exports
        Names that it exports.
    layers
        By kernel the layer that it computes.

    Raises
    ------
    TargetError
        If the file is no module.
    """
    module = Module(path.read_bytes(), path.name)
    findings = list(module.findings)
    memories = [(one.module, one.name, one.limits[0]) for one in module.imports if one.limits]
    if memories != [("env", "memory", SHARED)]:
        findings.append("its memory is not one that workers can share")
    findings += (
        f"it imports the {one.kind} {one.module}.{one.name}"
        for one in module.imports
        if one.limits is None
    )
    unexpected = sorted(set(module.exports) ^ set(exports))
    findings += (f"the export {name} is missing or not expected" for name in unexpected)
    count = 0
    for function in module.functions:
        count += len(function.instructions)
        for one in function.instructions:
            if not one.mnemonic or computes_floats(one, description):
                title = with_layer(function.name, layers or {})
                findings.append(f"{title} at 0x{one.address:x}: {one.text}")
    if not count:
        findings.append("there is no code")
    return LibraryAudit(count, tuple(findings))
