"""Every instruction of libraries and objects, looked at for floating point.

The disassembler is that of the target's binutils. What it cannot decode is a finding, not a pass;
so is what would let other bytes run than those that it decoded (`executable`, `control_flow`).
"""

from __future__ import annotations

import itertools
import re
import tempfile
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .description import TargetDescription
from .elf import is_relocatable, symbols
from .executable import Image, code_file, read_image
from .linking import Tools
from .machines.code import ADDRESS, LOADED, FlowRules, Function, Goes, Instruction, Transfer

# The instructions of objects, libraries and images, as the toolchain's objdump prints them.

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
    directive = one.mnemonic.startswith(".")  # .inst, .insn, .4byte
    unknown = directive or one.mnemonic in ("", "(bad)") or "<unknown>" in one.text
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


# Whether control stays in the code that was decoded: every way into an instruction is its start.
#
# Directly named addresses are compared with the decoding. What a register holds when control goes
# there is followed back, through calls, to where it came from: memory (a table, the linker's slot
# for a function of another library, a structure of the caller's), the address of an instruction
# that the code names, or an argument of the caller's. An address that is computed otherwise is a
# finding.

_LARGEST_CONSTANT = 16
# Of libgcc's division, see `Goes.WORDS`: 31 steps of three instructions, and one more.
_WORDS = 31 * 3 + 1
_PADDING = (0, 0xBF00, 0x46C0)  # and Thumb's instructions that do nothing
_STOPPED = Transfer(Goes.STOP, falls=False)
_ORDINARY = Transfer(Goes.NAMED)


class ControlFlow:
    """The ways through the code of an image.

    Parameters
    ----------
    image
        The image.
    code
        Its instructions, in order of address, without padding.
    data
        What lies between them: number of bytes and value, by address.
    rules
        Those of its machine.
    """

    def __init__(
        self,
        image: Image,
        code: Sequence[Instruction],
        data: dict[int, tuple[int, int]],
        rules: FlowRules,
    ) -> None:
        self.image, self.code, self.data, self.rules = image, code, data, rules
        self.places = {one.address: place for place, one in enumerate(code)}
        self.transfers = {
            place: found
            for place, one in enumerate(code)
            if (found := rules.transfer(one)) is not None
        }
        self.from_places: dict[int, list[int]] = {}
        for place, transfer in self.transfers.items():
            if transfer.goes is Goes.NAMED:
                self.from_places.setdefault(code[place].target or -1, []).append(place)
        # Registers at instructions that were found to be known.
        self._followed: set[tuple[int, str]] = set()

    def findings(self) -> Iterator[tuple[int, str]]:
        """What is wrong, and at which address."""
        for address, what in self.image.entries.items():
            if not self._starts(address):
                yield address & -1 - self.rules.constants, f"{what} is no start of an instruction"
        for number, transfer in self.transfers.items():
            one = self.code[number]
            if why := self._wrong(number, one, transfer):
                yield one.address, f"{why}: {one.text}"
        named = set()
        for one in self.code:
            place = self.rules.reference(one, self._is_thumb(one.address))
            if place is None or not self.image.segment_of(place):
                continue
            named.add(place)
            if place not in self.places and not self._is_data(place):
                yield (
                    one.address,
                    f"it names an address in the middle of an instruction: {one.text}",
                )
        yield from self._unknown_data(sorted(named))
        yield from self._running_off()

    def _is_thumb(self, address: int) -> bool:
        return self.image.state_of(address) == "t"

    def _is_data(self, address: int) -> bool:
        return any(address - size in self.data for size in range(4))

    def _starts(self, pointer: int) -> bool:
        """Whether a pointer is one to an instruction."""
        if not self.rules.constants:
            return pointer in self.places
        return pointer & ~1 in self.places and self._is_thumb(pointer & ~1) == pointer & 1

    def _wrong(self, place: int, one: Instruction, transfer: Transfer) -> str:
        goes = transfer.goes
        if re.match(self.rules.ambiguous, self.image.content(one.address)):
            return "not all processors read it alike"
        if goes is Goes.NAMED:
            target = -1 if one.target is None else one.target
            same = self._is_thumb(one.address) == self._is_thumb(target)
            if target not in self.places or same == transfer.switches:
                return "it jumps to what is no start of an instruction"
        elif goes is Goes.POINTER:
            if not self._is_known(place, transfer.register):
                return "it jumps to a computed address"
        elif goes is Goes.MEMORY:
            if one.target is not None and one.target not in self.image.slots:
                return "it jumps to an address from a place that the loader does not fill"
        elif goes is Goes.WORDS:
            words = range(one.address + 8, one.address + 8 + 4 * _WORDS, 4)
            if any(word not in self.places or self._is_thumb(word) for word in words):
                return "it jumps to a computed address"
        elif goes is Goes.RETURN:
            if place and re.fullmatch(self.rules.before_return, self.code[place - 1].text):
                return "it returns to an address that was put on the stack"
        elif goes is Goes.REFUSED:
            return "it calls the operating system or jumps to a computed address"
        return ""

    def _is_known(self, place: int, register: str) -> bool:
        """Whether all that a register may hold at an instruction is known."""
        waiting, reached = [(place, register)], {(place, register)}
        while waiting:
            place, register = waiting.pop()
            befores = self._befores(place, register)
            if befores is None:
                return False
            for before in befores:
                sources = self.rules.sources(self.code[before], register)
                if sources == ():
                    return False
                for source in (register,) if sources is None else sources:
                    state = before, source
                    if source == LOADED:
                        if not self._is_filled(self.code[before]):
                            return False
                    elif source.startswith(ADDRESS):
                        if int(source.removeprefix(ADDRESS)) not in self.places:
                            return False
                    elif state not in reached and state not in self._followed:
                        reached.add(state)
                        waiting.append(state)
        self._followed |= reached
        return True

    def _is_filled(self, one: Instruction) -> bool:
        """Whether an instruction loads no constant, or one that a linker or loader fills in."""
        place = self.rules.reference(one, self._is_thumb(one.address))
        return place not in self.data or place in self.image.slots

    def _befores(self, place: int, register: str) -> list[int] | None:
        """Instructions after which an instruction is reached; None if a register is unknown then.

        A register that holds the address to return to is known after and in a call.
        """
        address, is_link = self.code[place].address, register == self.rules.link
        found = [
            before
            for before in self.from_places.get(address, ())
            if not (is_link and self.transfers[before].calls)
        ]
        last = self.transfers.get(place - 1, _ORDINARY) if place else _STOPPED
        if last.falls and (not last.calls or register in self.rules.preserved):
            found.append(place - 1)
        elif last.falls and not is_link:  # the result of a call
            return None
        entered = address in self.image.entries or address | 1 in self.image.entries or not found
        known = is_link or register in self.rules.arguments
        return None if entered and not known else found

    def _running_off(self) -> Iterator[tuple[int, str]]:
        """Code that goes on where there is none."""
        ends = {segment.end for segment in self.image.segments}
        goes_on = False
        for address, after in itertools.pairwise(sorted({*self.places, *self.data, *ends})):
            place = self.places.get(address)
            if place is None:
                goes_on = False
                continue
            skipped = self.code[place].mnemonic.startswith("nop") and not goes_on
            if not skipped or address in self.from_places:
                goes_on = self.transfers.get(place, _ORDINARY).falls
            if goes_on and after not in self.places and not self._is_far_jump(place):
                yield address, "it goes on where there is no instruction"

    def _is_far_jump(self, place: int) -> bool:
        """Whether a call never comes back, as GCC for ARMv6-M jumps by one within long functions.

        What it goes to must not read the address to return to before another one takes its place.
        """
        transfer, link = self.transfers.get(place), self.rules.link
        if transfer is None or not transfer.calls or transfer.goes is not Goes.NAMED or not link:
            return False
        waiting, reached = [self.code[place].target], set()
        while waiting:
            address = waiting.pop()
            if address not in self.places:
                return False
            place = self.places[address]
            one, transfer = self.code[place], self.transfers.get(place)
            if place in reached or (transfer and transfer.calls):
                continue
            reached.add(place)
            names = re.findall(r"\w+", one.operands)
            if link in names:
                if self.rules.sources(one, link) is None or names.count(link) > 1:
                    return False
                continue  # another one takes its place
            if transfer is None or transfer.falls:
                waiting.append(self.code[place + 1].address if place + 1 < len(self.code) else None)
            if transfer and transfer.goes is Goes.NAMED:
                waiting.append(one.target)
            elif transfer and transfer.goes not in (Goes.RETURN, Goes.STOP):
                return False
        return True

    def _unknown_data(self, named: Sequence[int]) -> Iterator[tuple[int, str]]:
        """Bytes between instructions that no instruction names as a constant."""
        for address, (_, value) in self.data.items():
            before = bisect_right(named, address)
            covered = before and address < named[before - 1] + _LARGEST_CONSTANT
            if self.image.state_of(address) != "d":
                yield address, "no instruction"
            elif not covered and value not in _PADDING:
                yield address, f"data that nothing reads as a constant: {value:#x}"


# How a library for a GPU without runtime comes to the driver.
_OPENS_DRIVER = frozenset({"dlopen", "dlsym", "dlerror"})


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
        if not calls(name) and not (description.gpu and name in _OPENS_DRIVER)
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
