"""32-bit ARM under Linux; its instructions are those of microcontrollers too."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from .code import LOADED, FlowRules, Goes, Instruction, Transfer
from .record import GCC_INTEGER_HELPERS, Emulator, FloatUse, Linux, Machine, Toolchain

if TYPE_CHECKING:
    from elftools.elf.elffile import ELFFile
    from elftools.elf.sections import Section

_CONDITION = r"(?:eq|ne|cs|hs|cc|lo|mi|pl|vs|vc|hi|ls|ge|lt|gt|le|al|t|e)?"
_TYPED = r"v\w+(?:\.\w+)*\.(?:f16|f32|f64|bf16)(?:\.\w+)*"
_UNTYPED = r"v(?:cvt|jcvt|rint)\w*(?:\.\w+)*"
_BENIGN = (
    rf"v(?:mov|movx|ins|sel(?:eq|vs|ge|gt)|ldr|str|ldm\w*|stm\w*|push|pop|swp|dup|psel"
    rf"|ld\d|st\d|ext|rev\d\d|trn|uzp|zip|tbl|tbx|bsl|bit|bif|mrs|msr){_CONDITION}(?:\..*)?"
)
# Without a floating-point unit there are no such registers to move either.
_UNIT = r"v\w+(?:\..*)?|f(?:ld|st)m\w+"
_COPROCESSOR = rf"(?:cdp2?|mcrr?2?|mrrc2?|mrc2?|(?:ldc|stc)2?l?){_CONDITION}"
_UNIT_NUMBER = r"\s*(?:p|cp)?1[01]\s*,"


def is_floating_point(mnemonic: str, operands: str, has_registers: bool) -> bool:
    """The rule of all 32-bit ARM; see `Machine.is_floating_point`."""
    name = re.sub(r"\.[nw]$", "", mnemonic)  # the width of a Thumb encoding
    if not has_registers:
        if re.fullmatch(_UNIT, name):
            return True
        return bool(re.fullmatch(_COPROCESSOR, name) and re.match(_UNIT_NUMBER, operands))
    if re.fullmatch(_COPROCESSOR, name):  # a disassembler that does not know the unit's own names
        return name.startswith("cdp") and bool(re.match(_UNIT_NUMBER, operands))
    if re.fullmatch(_BENIGN, name):
        return False
    return bool(re.fullmatch(_TYPED, name) or re.fullmatch(_UNTYPED, name))


_NAMED = r"(?:^|.*, )[0-9a-f]+ <[^>]*>"
_SUFFIX = r"(?:eq|ne|cs|hs|cc|lo|mi|pl|vs|vc|hi|ls|ge|lt|gt|le)?(?:\.[nw])?$"
_REFUSED = r"(svc|swi|hvc|smc|rfe|srs|eret|tb[bh]|b(?!ic|fi|fc(?!s)|ti|l?x?$))\w*"
_NAMING = ("b", "bl", "blx", "cbz", "cbnz", "le", "wls")
_STOPS = ("udf", "udf.w", "bkpt", "hlt")
_ONLY_READS = r"(st(?!l?ex)|push|cmp|cmn|tst|teq|cbn?z|i?t[te]*|nop|pld|b|dmb|le)\w*(\.\w+)*"
_PAIRS = r"(ldrd|lda?exd|[us]m\w*l\w*|u?maal|vmov|mrrc)\w*(\.\w+)*"
_LOADS = r"(ldr(?![bhs]|d)|ldm|pop|ldrd)\w*(\.\w+)*"
_OF_CODE = r"(add|sub|addw|subw)(\.w)?"


def _plain(mnemonic: str) -> tuple[str, bool]:
    """A mnemonic without its condition and width, and whether it has a condition."""
    bare = mnemonic.removesuffix(".n").removesuffix(".w")
    for root in ("blx", "bl", "bx", "b", "pop", "ldm", "ldmia", "ldmfd", "ldr", "mov", "add"):
        if bare == root:
            return root, False
        if bare.startswith(root) and re.fullmatch(_SUFFIX, bare.removeprefix(root)):
            return root, True
    return bare, False


def transfer(one: Instruction) -> Transfer | None:
    """The rule of all 32-bit ARM; see `FlowRules.transfer`."""
    name, conditional = _plain(one.mnemonic)
    operands = one.operands
    if re.fullmatch(_NAMED, operands) and name in _NAMING:
        calls = name in ("bl", "blx")
        falls = conditional or name != "b"
        return Transfer(Goes.NAMED, falls=falls, calls=calls, switches=name == "blx")
    if name in ("bx", "blx"):
        calls = name == "blx"
        return Transfer(Goes.POINTER, operands, falls=conditional or calls, calls=calls)
    if name in _STOPS:
        return Transfer(Goes.STOP, falls=False)
    if re.fullmatch(_REFUSED, name):
        return Transfer(Goes.REFUSED)
    if name.startswith(("pop", "ldm")) and re.search(r"\bpc\b", operands.partition("{")[2]):
        return Transfer(Goes.RETURN, falls=conditional)
    if not re.match(r"pc\b", operands) or re.fullmatch(_ONLY_READS, name):
        return None
    if name == "ldr":
        returns = operands == "pc, [sp], #4"
        return Transfer(Goes.RETURN if returns else Goes.MEMORY, falls=conditional)
    if name == "mov" and re.fullmatch(r"pc, \w+", operands):
        return Transfer(Goes.POINTER, operands[4:], falls=conditional)
    # How libgcc begins in the middle of its division, whose 32 steps are three instructions each.
    if name == "add" and re.fullmatch(r"pc, pc, \w+, lsl #2", operands):
        return Transfer(Goes.WORDS, falls=conditional)
    return Transfer(Goes.REFUSED)


def _sources(one: Instruction, register: str) -> tuple[str, ...] | None:
    name, operands = one.mnemonic, one.operands
    split = operands.split(", ")
    if re.fullmatch(_ONLY_READS, name) and "!" not in operands:
        return None
    several = re.fullmatch(_LOADS, name) and "{" in operands
    if several and register in _listed(operands):
        return (LOADED,)
    base = re.search(rf"\[{register}(\], [^\]]|, [^\]]*\]!)|^{register}!", operands)
    if base:
        return ()
    written = split[: 2 if re.fullmatch(_PAIRS, name) else 1]
    if register not in written or re.fullmatch(_ONLY_READS, name) or several:
        return None
    _, conditional = _plain(name)
    before = (register,) if conditional else ()
    if re.fullmatch(_LOADS, name):
        return (LOADED, *before)
    moved = name in ("mov", "mov.w") or (conditional and name.startswith("mov"))
    return (split[1], *before) if moved and not split[1].startswith("#") else ()


def _listed(operands: str) -> set[str]:
    """Registers of a list such as ``{r4, r5-r7, lr}``."""
    inside = operands[operands.index("{") + 1 : operands.index("}")]
    return set(inside.split(", "))


def _reference(one: Instruction, thumb: bool) -> int | None:
    if one.target is not None:
        return one.target if not re.fullmatch(_NAMED, one.operands) else None
    found = re.fullmatch(r"\w+, pc, #(\d+)", one.operands)
    if not found or not re.fullmatch(_OF_CODE, one.mnemonic):
        return None
    base = (one.address + 4) & ~3 if thumb else one.address + 8
    return base + (-int(found[1]) if one.mnemonic.startswith("sub") else int(found[1]))


FLOW = FlowRules(
    transfer,
    _sources,
    arguments=frozenset({"r0", "r1", "r2", "r3"}),
    preserved=frozenset({*(f"r{number}" for number in range(4, 10)), "sl", "fp"}),
    reference=_reference,
    link="lr",
    before_return=r"push\b.*|str\S*\s+\w+, \[sp, #-\d+\]!",
    constants=True,
)
FLOAT_FUNCTIONS = re.compile(r"__aeabi_(?:[fd]\w+|u?[il]2[fd]|h2[fd]\w*|c[fd]\w+)")
TRIPLES = re.compile(r"(?:arm|thumb)(?:v\d.*)?(?<!b)")
"""Of little-endian ones: the others' end in b or eb."""

INTEGER_HELPERS = GCC_INTEGER_HELPERS | frozenset(
    {
        *(f"__aeabi_{name}" for name in ("idiv", "idivmod", "uidiv", "uidivmod")),
        *(f"__aeabi_{name}" for name in ("ldivmod", "uldivmod", "lmul", "lcmp", "ulcmp")),
        *(f"__aeabi_{name}" for name in ("llsl", "llsr", "lasr")),
        *(
            f"__aeabi_{name}{size}"
            for name in ("memcpy", "memmove", "memset", "memclr")
            for size in ("", "4", "8")
        ),
    }
)

# Flags of the ELF header (ELF for the ARM architecture, section 5.2).
_FLOAT_SOFT, _FLOAT_HARD = 0x200, 0x400


def float_use(elf: ELFFile) -> FloatUse:
    """What the header's flags say, or the attributes where the flags say nothing.

    Build attributes: Addenda to the ABI for the ARM architecture, section 3.3.
    """
    attributes = _attributes(elf.get_section_by_name(".ARM.attributes"))
    hard = elf["e_flags"] & _FLOAT_HARD or attributes.get("TAG_ABI_VFP_ARGS")
    return FloatUse(
        "hard" if hard and not elf["e_flags"] & _FLOAT_SOFT else "soft",
        bool(attributes.get("TAG_FP_ARCH")),
        bool(attributes.get("TAG_ADVANCED_SIMD_ARCH")),
    )


def _attributes(section: Section | None) -> Mapping[str, int]:
    """Build attributes of the whole file, by name of the tag."""
    return {
        attribute.tag: attribute.value
        for subsection in (section.iter_subsections("aeabi") if section else ())
        for part in subsection.iter_subsubsections("TAG_FILE")
        for attribute in part.iter_attributes()
    }


ARM = Machine(
    name="arm",
    title="32-bit ARM",
    elf_machine="EM_ARM",
    bits=32,
    triples=TRIPLES,
    is_floating_point=is_floating_point,
    flow=FLOW,
    float_functions=FLOAT_FUNCTIONS,
    float_abis=("hard", "soft"),
    float_use=float_use,
    integer_helpers=INTEGER_HELPERS,
    toolchains={
        "hard": Toolchain("arm-linux-gnueabihf", "gcc-arm-linux-gnueabihf libc6-dev-armhf-cross"),
        "soft": Toolchain("arm-linux-gnueabi", "gcc-arm-linux-gnueabi libc6-dev-armel-cross"),
    },
    emulator=Emulator("qemu-arm", "qemu-user"),
    system=Linux(
        # A 64-bit ARM may or may not run 32-bit programs, so it counts as another machine here.
        names=("armv6l", "armv7l", "armv8l"),
        kernels=("aarch64",),
        runtimes=("none",),
        # arch/arm/include/uapi/asm/hwcap.h of Linux
        capabilities={
            (0, 5): "fastmult",
            (0, 6): "vfp",
            (0, 7): "edsp",
            (0, 12): "neon",
            (0, 13): "vfpv3",
            (0, 16): "vfpv4",
            (0, 17): "idiva",
            (0, 18): "idivt",
        },
        implied={"asimd": "neon"},  # a 64-bit processor has all of NEON
    ),
)
