"""Files of WebAssembly: sections, symbols of objects, and every instruction of a module.

Follows the WebAssembly core specification 3.0, chapter 5 (binary format), and the tool conventions'
*Linking* for objects. Code is structured: there are no jumps to addresses, and engines refuse a
module whose branches leave their function. So the instructions that are decoded here, one after
the other from a function's first byte to its last, are all that can ever run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ibert_tvm.common.errors import TargetError

from ..object_format import ObjectFormat

_HEADER = b"\0asm\1\0\0\0"
SECTIONS = (
    *("custom", "type", "import", "function", "table", "memory", "global", "export", "start"),
    *("element", "code", "data", "data count", "tag"),
)
"""Names of sections by their numbers."""
KINDS = ("function", "table", "memory", "global", "tag")
"""What imports and exports are, by number."""
TYPES = {0x7F: "i32", 0x7E: "i64", 0x7D: "f32", 0x7C: "f64", 0x7B: "v128", 0x70: "funcref"}
_SYMBOL_TABLE = 8
_UNDEFINED, _EXPLICIT_NAME = 0x10, 0x40
_FUNCTION, _DATA, _SECTION = 0, 1, 3


class Reader:
    """Reads a file from front to back; TargetError where it ends too early or makes no sense."""

    def __init__(self, data: bytes, name: str = "") -> None:
        self.data, self.name, self.at = data, name, 0

    def wrong(self, why: str) -> TargetError:
        """The error for what is at the present place."""
        return TargetError("a WebAssembly file cannot be read", self.name, f"{why} at {self.at}")

    def done(self) -> bool:
        """Whether all was read."""
        return self.at == len(self.data)

    def bytes(self, count: int) -> bytes:
        """So many bytes."""
        if count > len(self.data) - self.at:
            raise self.wrong("it ends too early")
        self.at += count
        return self.data[self.at - count : self.at]

    def byte(self) -> int:
        """One byte."""
        return self.bytes(1)[0]

    def number(self, bits: int = 32) -> int:
        """An unsigned LEB128; of a signed one the bits, which nothing here looks at."""
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value
            if shift >= bits:
                raise self.wrong("a number is too long")

    def text(self) -> str:
        """A name."""
        return self.bytes(self.number()).decode("utf-8", "replace")

    def part(self) -> Reader:
        """What follows, whose size is in front of it."""
        return Reader(self.bytes(self.number()), self.name)

    def many(self) -> range:
        """As many as the next number says."""
        return range(self.number())

    def limits(self) -> tuple[int, int, int | None]:
        """Flags, and the least and greatest size of a table or memory."""
        flags = self.byte()
        least = self.number()
        return flags, least, self.number() if flags & 1 else None


def sections(data: bytes, name: str = "") -> Iterator[tuple[int, Reader]]:
    """Sections of a file, by number, in order.

    Raises
    ------
    TargetError
        If it is no WebAssembly.
    """
    reader = Reader(data, name)
    if reader.bytes(len(_HEADER)) != _HEADER:
        raise reader.wrong("it is no WebAssembly of version 1")
    while not reader.done():
        number = reader.byte()
        if number >= len(SECTIONS):
            raise reader.wrong(f"there is a section of number {number}")
        yield number, reader.part()


@dataclass(frozen=True)
class Import:
    """What a module expects: of which module, its name, what it is, and limits of a memory."""

    module: str
    name: str
    kind: str
    limits: tuple[int, int, int | None] | None = None


def read_imports(part: Reader) -> list[Import]:
    """The content of an import section."""
    found = []
    for _ in part.many():
        module, name, kind = part.text(), part.text(), part.byte()
        if kind >= len(KINDS):
            raise part.wrong(f"an import of kind {kind}")
        limits = None
        if KINDS[kind] == "function":
            part.number()
        elif KINDS[kind] == "table":
            part.byte()
            part.limits()
        elif KINDS[kind] == "memory":
            limits = part.limits()
        else:
            part.bytes(2)
        found.append(Import(module, name, KINDS[kind], limits))
    return found


@dataclass
class _Object:
    imports: list[Import] = field(default_factory=list)
    undefined: set[str] = field(default_factory=set)
    code_bytes: int = 0


def _read_object(data: bytes) -> _Object:
    found = _Object()
    for number, part in sections(data):
        if SECTIONS[number] == "import":
            found.imports = read_imports(part)
        elif SECTIONS[number] in ("code", "data"):
            found.code_bytes += len(part.data)
        elif SECTIONS[number] == "custom" and part.text() == "linking":
            part.number()  # the version
            while not part.done():
                kind, table = part.byte(), part.part()
                if kind == _SYMBOL_TABLE:
                    _read_symbols(table, found)
    return found


def _read_symbols(table: Reader, found: _Object) -> None:
    functions = [one.name for one in found.imports if one.kind == "function"]
    for _ in table.many():
        kind, flags = table.byte(), table.number()
        undefined = bool(flags & _UNDEFINED)
        name, index = "", 0
        if kind == _SECTION:
            table.number()
        elif kind == _DATA:
            name = table.text()
            if not undefined:
                for _ in range(3):  # segment, offset, size
                    table.number()
        else:
            index = table.number()
            if not undefined or flags & _EXPLICIT_NAME:
                name = table.text()
            elif kind == _FUNCTION and index < len(functions):
                name = functions[index]
        if kind in (_FUNCTION, _DATA) and (undefined or name.startswith("__TVM")):
            found.undefined.add(name)


def _undefined(data: bytes) -> tuple[str, ...]:
    return tuple(sorted(_read_object(data).undefined))


def _code_bytes(data: bytes) -> int:
    return _read_object(data).code_bytes


WASM = ObjectFormat(_undefined, _code_bytes)
