"""Cortex-M: Thumb instructions without operating system."""

from __future__ import annotations

import re
import struct

from .arm import FLOAT_FUNCTIONS, FLOW, INTEGER_HELPERS, TRIPLES, float_use, is_floating_point
from .code import Function, Instruction, StackError, StackRules
from .record import BareMetal, Emulator, Machine, Toolchain

# Marking objects as fit for projects with either convention for floating-point arguments.
#
# A project for a Cortex-M4 is usually compiled with ``-mfloat-abi=hard``, and a linker refuses to
# mix it with objects of the base convention. Functions here pass integers and pointers only, which
# both conventions pass alike: the ABI has a mark for that, Tag_ABI_VFP_args = 3 ("compatible with
# both", Addenda to the ABI for the Arm Architecture, IHI 0045, 3.3.6). Compilers do not write it.

SECTION = ".ARM.attributes"
_VFP_ARGS, _BOTH = 28, 3
_FILE = 1
_VENDOR = b"aeabi\0"
_TEXT_TAGS = (4, 5, 67)
_COMPATIBILITY = 32


def with_either_convention(attributes: bytes) -> bytes:
    """Attributes that say that both conventions are served.

    Parameters
    ----------
    attributes
        Content of the section: version ``A``, one subsection of the vendor ``aeabi``, in it one of
        the whole file.

    Returns
    -------
    bytes
        The same with the tag, in place of another value of it where there is one.

    Raises
    ------
    ValueError
        If the section has another form.
    """
    head = 5 + len(_VENDOR)
    if len(attributes) < head + 5 or attributes[:1] != b"A" or attributes[5:head] != _VENDOR:
        raise ValueError("attributes of an unknown form")
    (outer,) = struct.unpack_from("<I", attributes, 1)
    tag = attributes[head]
    (inner,) = struct.unpack_from("<I", attributes, head + 1)
    if tag != _FILE or 1 + outer != len(attributes) or head + inner != len(attributes):
        raise ValueError("attributes of an unknown form")
    kept = b"".join(
        raw for number, raw in _entries(attributes[head + 5 :]) if number != _VFP_ARGS
    ) + bytes((_VFP_ARGS, _BOTH))
    inner = 5 + len(kept)
    outer = 4 + len(_VENDOR) + inner
    return b"".join(
        (b"A", struct.pack("<I", outer), _VENDOR, bytes((_FILE,)), struct.pack("<I", inner), kept)
    )


def _entries(data: bytes) -> list[tuple[int, bytes]]:
    """(tag, bytes with the tag) of every attribute."""
    entries, at = [], 0
    while at < len(data):
        start = at
        tag, at = _number(data, at)
        if tag == _COMPATIBILITY:
            _, at = _number(data, at)
            at = data.index(b"\0", at) + 1
        elif tag in _TEXT_TAGS or (tag > _COMPATIBILITY and tag % 2 == 1):
            at = data.index(b"\0", at) + 1
        else:
            _, at = _number(data, at)
        entries.append((tag, data[start:at]))
    return entries


def _number(data: bytes, at: int) -> tuple[int, int]:
    """A number of 7 bits per byte, and where the next begins."""
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


_PUSHES = r"(v?push|v?stmdb|stmfd)(\.[nw]|\.64|\.32)?"
_STORES = r"(str[a-z]*)(\.[nw])?"
_LITERALS = r"(ldr|movs?|movw|mvns?)(\.[nw])?"


def _lowered(function: Function, index: int) -> int:
    one = function.instructions[index]
    name, operands = one.mnemonic, one.operands
    if re.fullmatch(_PUSHES, name) and ("push" in name or operands.startswith("sp!")):
        return _register_bytes(operands)
    if re.fullmatch(_STORES, name) and (amount := re.search(r"\[sp, #-(\d+)\]!", operands)):
        return int(amount[1])
    if re.fullmatch(r"(sub|subw|add)s?(\.[nw])?", name) and re.match(r"sp(,|$)", operands):
        return _arithmetic(function, index, one)
    if re.fullmatch(r"mov(\.[nw])?", name) and operands.startswith("sp, "):
        return _realigned(function, index, operands.split(", ")[1])
    return 0


def _arithmetic(function: Function, index: int, one: Instruction) -> int:
    """``sub sp, #n``, ``sub sp, sp, #n``, and the same with a register."""
    adds = one.mnemonic.startswith("add")
    last = one.operands.split(", ")[-1]
    if last.startswith("#"):
        amount = int(last[1:], 0)
    else:
        amount = _constant(function, index, last)
        if adds and amount >= 1 << 31:
            adds, amount = False, (1 << 32) - amount
    return 0 if adds else amount


def _constant(function: Function, index: int, register: str) -> int:
    """The constant that a register was last loaded with.

    Raises
    ------
    StackError
        If it was not loaded with one.
    """
    for one in reversed(function.instructions[:index]):
        if one.operands.split(",")[0] != register:
            continue
        if not re.fullmatch(_LITERALS, one.mnemonic):
            break
        if one.mnemonic.startswith("ldr") and one.target in function.data:
            return function.data[one.target][1]
        if one.mnemonic.startswith(("mov", "mvn")) and "#" in one.operands:
            value = int(one.operands.split("#")[1], 0)
            return ~value & 0xFFFFFFFF if one.mnemonic.startswith("mvn") else value
        break
    raise StackError(
        function.name, f"it lowers the stack pointer by {register}, which is not a constant"
    )


def _realigned(function: Function, index: int, register: str) -> int:
    """``mov sp, register``: the end of a frame, or its start rounded down to an alignment."""
    for one in reversed(function.instructions[max(0, index - 4) : index]):
        if one.operands.split(",")[0] != register:
            continue
        if one.mnemonic in ("bfc", "bfc.w"):
            return 1 << int(one.operands.split("#")[2])
        if one.mnemonic in ("lsls", "lsl", "lsl.w") and "#" in one.operands:
            return 1 << int(one.operands.split("#")[1])
        if one.mnemonic.startswith("sub") and "#" not in one.operands:
            raise StackError(function.name, f"it lowers the stack pointer by {one.operands}")
        break
    return 0


def _register_bytes(operands: str) -> int:
    """Bytes of a list of registers such as ``{r4, r5, lr}`` or ``{d8-d15}``."""
    inside = operands[operands.index("{") + 1 : operands.index("}")]
    total = 0
    for item in inside.split(", "):
        first, _, last = item.partition("-")
        count = int(last[1:]) - int(first[1:]) + 1 if last else 1
        total += count * (8 if first.startswith("d") else 4)
    return total


THUMB = Machine(
    name="thumb",
    title="Cortex-M",
    elf_machine="EM_ARM",
    bits=32,
    triples=TRIPLES,
    is_floating_point=is_floating_point,
    flow=FLOW,
    float_functions=FLOAT_FUNCTIONS,
    float_abis=("soft",),
    float_use=float_use,
    # The attributes of a file alone do not make objdump know the vector instructions.
    disassembler={"+mve": ("-marmv8.1-m.main",)},
    integer_vectors=frozenset({"+mve"}),
    integer_helpers=INTEGER_HELPERS,
    toolchains={"soft": Toolchain("arm-none-eabi", "gcc-arm-none-eabi")},
    emulator=Emulator("qemu-system-arm", "qemu-system-arm"),
    system=BareMetal(
        stack=StackRules(_lowered, FLOW),
        start_up=("startup.c", "semihosting.c"),
        compilers="defined(__arm__) || defined(__ICCARM__)",
        pointer=2,  # R_ARM_ABS32
        neutral=(SECTION, with_either_convention),
    ),
)
