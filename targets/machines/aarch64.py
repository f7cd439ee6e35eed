"""64-bit ARM under Linux."""

from __future__ import annotations

import re

from .record import Driver, Emulator, Linux, Machine, Toolchain

_FLOATING = re.compile(
    # every mnemonic of scalar and vector floating point begins with f, conversions to it with
    # scvtf and ucvtf; bfloat16's with bf, as do three that insert and clear bits (bfi, bfxil, bfc)
    r"f\w+|[su]cvtf|bf(?:add|sub|mul|ml|dot|mmla|cvt|max|min|clamp|scale)\w*"
)


def _is_floating_point(mnemonic: str, operands: str, has_registers: bool) -> bool:
    if mnemonic == "fmov":  # between registers it moves bits; of a constant it makes a float
        return "#" in operands
    return _FLOATING.fullmatch(mnemonic) is not None


AARCH64 = Machine(
    name="aarch64",
    title="64-bit ARM",
    elf_machine="EM_AARCH64",
    bits=64,
    triples=re.compile("aarch64|arm64"),
    is_floating_point=_is_floating_point,
    general_registers=("-mgeneral-regs-only",),
    toolchains={
        "": Toolchain(
            "aarch64-linux-gnu-gcc",
            "aarch64-linux-gnu",
            "gcc-aarch64-linux-gnu libc6-dev-arm64-cross",
        )
    },
    emulator=Emulator("qemu-aarch64", "qemu-user"),
    system=Linux(
        names=("aarch64", "arm64"),
        runtimes=("tvm", "none"),
        # arch/arm64/include/uapi/asm/hwcap.h of Linux
        capabilities={
            (0, 0): "fp",
            (0, 1): "asimd",
            (0, 3): "aes",
            (0, 7): "crc32",
            (0, 8): "atomics",
            (0, 9): "fphp",
            (0, 10): "asimdhp",
            (0, 12): "asimdrdm",
            (0, 20): "asimddp",
            (0, 22): "sve",
            (1, 1): "sve2",
            (1, 13): "i8mm",
            (1, 14): "bf16",
        },
        driver=Driver({"mcpu": "cortex-a57", "mtriple": "aarch64-linux-gnu"}, ("asimd",)),
    ),
)
