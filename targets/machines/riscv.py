"""RISC-V: microcontrollers of 32 bits without floating point, and boards of 64 bits under Linux."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from .code import (
    ADDRESS,
    LOADED,
    FlowRules,
    Function,
    Goes,
    Instruction,
    StackError,
    StackRules,
    Transfer,
)
from .record import GCC_INTEGER_HELPERS, BareMetal, Emulator, FloatUse, Linux, Machine, Toolchain

if TYPE_CHECKING:
    from elftools.elf.elffile import ELFFile

# All floating point on scalars begins with f, as does the fence of memory; that on vectors with vf,
# vmf (comparisons) and vfw, as does vfirst, which counts bits of a mask.
_FLOATING = r"(?:c\.)?f(?!ence)\w+(?:\.\w+)*|vm?f(?!irst\b)\w+(?:\.\w+)*"
_MOVES = (
    r"(?:c\.)?f[ls][bhwdq](?:sp)?|fmv\.\w+(?:\.\w+)*|f[rs]csr|fsgnj\.\w|vf(?:mv|merge)(?:\.\w+)*"
)


def _is_floating_point(mnemonic: str, _operands: str, has_registers: bool) -> bool:
    if has_registers and re.fullmatch(_MOVES, mnemonic):
        return False
    return re.fullmatch(_FLOATING, mnemonic) is not None


_BRANCHES = r"b(?:eq|ne|lt|ge|gt|le)(?:u|z)?"
_REFUSED = r"ecall|[msu]ret|d?ret\w+|wfi|csr\w+|fence\.i|sfence\w*|hfence\w*|r?d?cycle\w*"
# Of the registers that are refused: the length of vectors, and how their averages are rounded.
_OF_VECTORS = {"csrr": (1, "vlenb"), "csrw": (0, "vxrm"), "csrwi": (0, "vxrm")}
_STOPS = ("ebreak", "unimp")
_ONLY_READS = rf"s[bhwd]|fence(\.\w+)?|nop|j|jr|{_BRANCHES}"


_NUMBER = r"-?\d\w*"


def _operands(one: Instruction) -> list[str]:
    """Without the comment that names an address."""
    return re.split(r"\s*,\s*", one.operands.partition("#")[0].strip())


def _transfer(one: Instruction) -> Transfer | None:
    name, operands = one.mnemonic, _operands(one)
    if name == "ret":
        return Transfer(Goes.POINTER, "ra", falls=False)
    if name == "jalr" and re.fullmatch(r"t1, ?t3", one.operands):  # in the linker's slots
        return Transfer(Goes.POINTER, "t3", falls=False)
    if name in ("jr", "jalr"):
        # Behind an offset or with another register to return by, nothing here jumps.
        if len(operands) > 1 or "(" in operands[0]:
            return Transfer(Goes.REFUSED)
        return Transfer(Goes.POINTER, operands[0], falls=name == "jalr", calls=name == "jalr")
    if name == "jal":
        return Transfer(Goes.NAMED, calls=True) if len(operands) == 1 else Transfer(Goes.REFUSED)
    if name == "j" or re.fullmatch(_BRANCHES, name):
        return Transfer(Goes.NAMED, falls=name != "j")
    if name in _STOPS:
        return Transfer(Goes.STOP, falls=False)
    place, register = _OF_VECTORS.get(name, (0, ""))
    if operands[place : place + 1] == [register]:
        return None
    return Transfer(Goes.REFUSED) if re.fullmatch(_REFUSED, name) else None


def _sources(one: Instruction, register: str, pointer: str) -> tuple[str, ...] | None:
    name, operands = one.mnemonic, _operands(one)
    register, _, upper = register.partition("@")
    if operands[0] != register or re.fullmatch(_ONLY_READS, name):
        return None
    if name in ("lui", "auipc"):
        value = (int(operands[1], 0) << 12) + (one.address if name == "auipc" else 0)
        if upper:
            return (LOADED,) if (value - int(upper)) % (1 << 32) == 0 else ()
        return (f"{ADDRESS}{value}",)
    if upper:
        return ()
    if name == pointer:
        return (LOADED,)
    # Instructions of two and of four bytes are mixed: a sum may be an address inside of one. That
    # of an address's two parts is known, wherever the register has the upper part.
    if name in ("add", "addi") and one.target is not None and re.fullmatch(_NUMBER, operands[2]):
        rest = one.target - int(operands[2], 0)
        return f"{ADDRESS}{one.target}", f"{operands[1]}@{rest}"
    return (operands[1],) if name == "mv" else ()


def _sources_32(one: Instruction, register: str) -> tuple[str, ...] | None:
    return _sources(one, register, "lw")


def _sources_64(one: Instruction, register: str) -> tuple[str, ...] | None:
    return _sources(one, register, "ld")


def _flow(sources: Callable[[Instruction, str], tuple[str, ...] | None]) -> FlowRules:
    return FlowRules(
        _transfer,
        sources,
        arguments=frozenset(f"a{number}" for number in range(8)),
        preserved=frozenset(f"s{number}" for number in range(12)),
        link="ra",
    )


_FLOW_32 = _flow(_sources_32)


def _lowered(function: Function, index: int) -> int:
    one = function.instructions[index]
    name, operands = one.mnemonic, _operands(one)
    if operands[0] != "sp" or re.fullmatch(_ONLY_READS, name):
        return 0
    if name in ("mv", "lw") or operands[1] != "sp":  # the end of a frame
        return 0
    last = operands[2]
    amount = int(last, 0) if re.fullmatch(_NUMBER, last) else _constant(function, index, last)
    if name in ("add", "addi", "sub"):
        return max(0, amount if name == "sub" else -amount)
    if name in ("and", "andi") and amount < 0:  # rounded down to an alignment
        return -amount
    raise StackError(function.name, f"it changes the stack pointer: {one.text}")


def _constant(function: Function, index: int, register: str) -> int:
    """The constant that a register was last loaded with: ``lui``, or ``li``, and what is added.

    Raises
    ------
    StackError
        If it was not loaded with one.
    """
    added = 0
    for one in reversed(function.instructions[:index]):
        name, operands = one.mnemonic, _operands(one)
        if operands[0] != register or re.fullmatch(_ONLY_READS, name):
            continue
        if name in ("li", "lui"):
            value = int(operands[1], 0) << (12 if name == "lui" else 0)
            return (value + added + (1 << 31)) % (1 << 32) - (1 << 31)
        adds = name in ("add", "addi") and operands[1] == register
        if not adds or not re.fullmatch(_NUMBER, operands[2]):
            break
        added += int(operands[2], 0)
    raise StackError(
        function.name, f"it lowers the stack pointer by {register}, which is not a constant"
    )


# Flags of the ELF header (RISC-V ELF psABI, section 8.1), and the attribute that names extensions.
_FLOAT_ABI, _ARCHITECTURE = 0x6, "TAG_ARCH"


def _float_use(elf: ELFFile) -> FloatUse:
    section = elf.get_section_by_name(".riscv.attributes")
    extensions: set[str] = set()
    for subsection in section.iter_subsections("riscv") if section else ():
        for part in subsection.iter_subsubsections("TAG_FILE"):
            for attribute in part.iter_attributes(_ARCHITECTURE):
                # rv32i2p1_m2p0_c2p0: extensions with their versions
                first, *others = re.sub(r"\d+p\d+", "", attribute.value).split("_")
                extensions |= {*first[4:], *others}
    return FloatUse(
        "hard" if elf["e_flags"] & _FLOAT_ABI else "soft",
        bool(extensions & {"f", "d", "q", "zfinx", "zdinx", "zfh", "zhinx"}),
        any(one == "v" or one.startswith("zve") for one in extensions),
    )


RISCV32 = Machine(
    name="riscv32",
    title="32-bit RISC-V",
    elf_machine="EM_RISCV",
    bits=32,
    triples=re.compile("riscv32"),
    is_floating_point=_is_floating_point,
    flow=_FLOW_32,
    float_abis=("soft",),
    float_use=_float_use,
    integer_helpers=GCC_INTEGER_HELPERS,
    toolchains={"soft": Toolchain("riscv64-unknown-elf", "gcc-riscv64-unknown-elf")},
    emulator=Emulator("qemu-system-riscv32", "qemu-system-misc", options=("-bios", "none")),
    system=BareMetal(
        stack=StackRules(_lowered, _FLOW_32),
        start_up=("startup_riscv.c", "semihosting.c"),
        compilers="defined(__riscv)",
        pointer=1,  # R_RISCV_32
    ),
)

RISCV64 = Machine(
    name="riscv64",
    title="64-bit RISC-V",
    elf_machine="EM_RISCV",
    bits=64,
    triples=re.compile("riscv64"),
    is_floating_point=_is_floating_point,
    flow=_flow(_sources_64),
    float_abis=("hard",),
    float_use=_float_use,
    # A mapping symbol (RISC-V ELF psABI). Vector instructions are decoded for all processors, so
    # that those on floats are found.
    code_symbol="$xrv64gcv",
    toolchains={
        "hard": Toolchain("riscv64-linux-gnu", "gcc-riscv64-linux-gnu libc6-dev-riscv64-cross")
    },
    emulator=Emulator("qemu-riscv64", "qemu-user"),
    system=Linux(
        names=("riscv64",),
        runtimes=("none",),
        # arch/riscv/include/uapi/asm/hwcap.h of Linux: letters of extensions
        capabilities={(0, ord(letter) - ord("a")): letter for letter in "imafdcv"},
    ),
)
