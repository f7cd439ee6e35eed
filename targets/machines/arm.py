"""32-bit ARM under Linux; its instructions are those of microcontrollers too."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from .record import Emulator, FloatUse, Linux, Machine, Toolchain

if TYPE_CHECKING:
    from elftools.elf.elffile import ELFFile
    from elftools.elf.sections import Section

_CONDITION = r"(?:eq|ne|cs|hs|cc|lo|mi|pl|vs|vc|hi|ls|ge|lt|gt|le|al|t|e)?"
_TYPED = re.compile(r"v\w+(?:\.\w+)*\.(?:f16|f32|f64|bf16)(?:\.\w+)*")
_UNTYPED = re.compile(r"v(?:cvt|jcvt|rint)\w*(?:\.\w+)*")
_BENIGN = re.compile(
    rf"v(?:mov|movx|ins|sel(?:eq|vs|ge|gt)|ldr|str|ldm\w*|stm\w*|push|pop|swp|dup|psel"
    rf"|ld\d|st\d|ext|rev\d\d|trn|uzp|zip|tbl|tbx|bsl|bit|bif|mrs|msr){_CONDITION}(?:\..*)?"
)
# Without a floating-point unit there are no such registers to move either.
_UNIT = re.compile(r"v\w+(?:\..*)?|f(?:ld|st)m\w+")
_COPROCESSOR = re.compile(rf"(?:cdp2?|mcrr?2?|mrrc2?|mrc2?|(?:ldc|stc)2?l?){_CONDITION}")
_UNIT_NUMBER = re.compile(r"\s*(?:p|cp)?1[01]\s*,")


def is_floating_point(mnemonic: str, operands: str, has_registers: bool) -> bool:
    """The rule of all 32-bit ARM; see `Machine.is_floating_point`."""
    name = re.sub(r"\.[nw]$", "", mnemonic)  # the width of a Thumb encoding
    if not has_registers:
        if _UNIT.fullmatch(name):
            return True
        return bool(_COPROCESSOR.fullmatch(name) and _UNIT_NUMBER.match(operands))
    if _COPROCESSOR.fullmatch(name):  # a disassembler that does not know the unit's own names
        return name.startswith("cdp") and bool(_UNIT_NUMBER.match(operands))
    if _BENIGN.fullmatch(name):
        return False
    return bool(_TYPED.fullmatch(name) or _UNTYPED.fullmatch(name))


FLOAT_FUNCTIONS = re.compile(r"__aeabi_(?:[fd]\w+|u?[il]2[fd]|h2[fd]\w*|c[fd]\w+)")
TRIPLES = re.compile(r"(?:arm|thumb)(?:v\d.*)?(?<!b)")
"""Of little-endian ones: the others' end in b or eb."""

# Helpers of the compiler's own library (libgcc, compiler-rt) for integers: division where there is
# no instruction of it, and 64-bit arithmetic. None of them computes with floats.
INTEGER_HELPERS = frozenset(
    {
        *(f"__aeabi_{name}" for name in ("idiv", "idivmod", "uidiv", "uidivmod")),
        *(f"__aeabi_{name}" for name in ("ldivmod", "uldivmod", "lmul", "lcmp", "ulcmp")),
        *(f"__aeabi_{name}" for name in ("llsl", "llsr", "lasr")),
        *(
            f"__aeabi_{name}{size}"
            for name in ("memcpy", "memmove", "memset", "memclr")
            for size in ("", "4", "8")
        ),
        *(f"__{name}{size}i3" for name in ("div", "udiv", "mod", "umod") for size in "sd"),
        *(f"__{name}di3" for name in ("mul", "ashl", "ashr", "lshr")),
        "__clzsi2",
        "__clzdi2",
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
    float_functions=FLOAT_FUNCTIONS,
    float_abis=("hard", "soft"),
    float_use=float_use,
    integer_helpers=INTEGER_HELPERS,
    toolchains={
        "hard": Toolchain(
            "arm-linux-gnueabihf-gcc",
            "arm-linux-gnueabihf",
            "gcc-arm-linux-gnueabihf libc6-dev-armhf-cross",
        ),
        "soft": Toolchain(
            "arm-linux-gnueabi-gcc",
            "arm-linux-gnueabi",
            "gcc-arm-linux-gnueabi libc6-dev-armel-cross",
        ),
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
