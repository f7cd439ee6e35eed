"""Cortex-M: Thumb instructions without operating system."""

from __future__ import annotations

import re

from .arm import FLOAT_FUNCTIONS, FLOW, INTEGER_HELPERS, TRIPLES, float_use, is_floating_point
from .arm_attributes import SECTION, with_either_convention
from .code import Function, Instruction, StackError, StackRules
from .record import BareMetal, Emulator, Machine, Toolchain

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
    toolchains={"soft": Toolchain("arm-none-eabi-gcc", "arm-none-eabi", "gcc-arm-none-eabi")},
    emulator=Emulator("qemu-system-arm", "qemu-system-arm"),
    system=BareMetal(
        stack=StackRules(_lowered, FLOW),
        start_up=("startup.c", "semihosting.c"),
        compilers="defined(__arm__) || defined(__ICCARM__)",
        pointer=2,  # R_ARM_ABS32
        neutral=(SECTION, with_either_convention),
    ),
)
