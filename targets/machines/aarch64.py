"""64-bit ARM under Linux."""

from __future__ import annotations

import re

from .code import LOADED, FlowRules, Goes, Instruction, Transfer
from .record import Driver, Emulator, Linux, Machine, Toolchain

_FLOATING = (
    # every mnemonic of scalar and vector floating point begins with f, conversions to it with
    # scvtf and ucvtf; bfloat16's with bf, as do three that insert and clear bits (bfi, bfxil, bfc)
    r"f\w+|[su]cvtf|bf(?:add|sub|mul|ml|dot|mmla|cvt|max|min|clamp|scale)\w*"
)


def _is_floating_point(mnemonic: str, operands: str, has_registers: bool) -> bool:
    if mnemonic == "fmov":  # between registers it moves bits; of a constant it makes a float
        return "#" in operands
    return re.fullmatch(_FLOATING, mnemonic) is not None


_BRANCHES = r"b(?:\.\w+)?|c?bn?z|tbn?z|bc\.\w+"
_REFUSED = r"svc|hvc|smc|eret\w*|bl?ra\w+|reta\w+|dcps\d"
_STOPS = ("brk", "udf", "hlt")
_ONLY_READS = r"st(?!l?x[rp])\w+|cmp|cmn|tst|ccm[np]|[ct]bn?z|prfu?m|msr|b|bl|b\.\w+|blr|br|ret"
_PAIRS = r"ldn?p|ldpsw|lda?xp|ld(?:add|clr|eor|set|smax|smin|umax|umin)\w*|swp\w*"


_GENERAL = r"[xw]\d+"


def _transfer(one: Instruction) -> Transfer | None:
    name = one.mnemonic
    if name in ("blr", "br"):
        return Transfer(Goes.POINTER, one.operands, falls=name == "blr", calls=name == "blr")
    if name == "ret":
        return Transfer(Goes.POINTER, one.operands or "x30", falls=False)
    if name == "bl":
        return Transfer(Goes.NAMED, calls=True)
    if re.fullmatch(_BRANCHES, name):
        return Transfer(Goes.NAMED, falls=name != "b")
    if name in _STOPS:
        return Transfer(Goes.STOP, falls=False)
    return Transfer(Goes.REFUSED) if re.fullmatch(_REFUSED, name) else None


def _sources(one: Instruction, register: str) -> tuple[str, ...] | None:
    name, operands = one.mnemonic, one.operands.split(", ")
    count = 2 if re.fullmatch(_PAIRS, name) else 1
    written = {f"x{part[1:]}": part[0] for part in operands[:count] if re.fullmatch(_GENERAL, part)}
    if re.search(rf"\[{register}(\]|, #-?\d+\]!)(?!$)|\[{register}, .*\]!", one.operands):
        return ()  # an address that is moved on
    if register not in written or re.fullmatch(_ONLY_READS, name):
        return None
    if name.startswith("ld") and written[register] == "x":
        return (LOADED,)
    if name in ("adr", "adrp"):
        return (LOADED,)
    # A page and a place on it. Whatever is added, the sum is the address of an instruction: all
    # are four bytes and aligned.
    moved = name == "mov" or (name == "add" and operands[-1].startswith("#"))
    return (operands[1],) if moved and re.fullmatch(_GENERAL, operands[1]) else ()


def _reference(_one: Instruction, _thumb: bool) -> int | None:
    return None


AARCH64 = Machine(
    name="aarch64",
    title="64-bit ARM",
    elf_machine="EM_AARCH64",
    bits=64,
    triples=re.compile("aarch64|arm64"),
    is_floating_point=_is_floating_point,
    flow=FlowRules(
        _transfer,
        _sources,
        arguments=frozenset(f"x{number}" for number in range(8)),
        preserved=frozenset(f"x{number}" for number in range(19, 30)),
        link="x30",
    ),
    general_registers=("-mgeneral-regs-only",),
    toolchains={"": Toolchain("aarch64-linux-gnu", "gcc-aarch64-linux-gnu libc6-dev-arm64-cross")},
    emulator=Emulator("qemu-aarch64", "qemu-user"),
    system=Linux(
        names=("aarch64", "arm64"),
        runtimes=("none", "tvm"),
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
        threads=True,
        driver=Driver({"mcpu": "cortex-a57", "mtriple": "aarch64-linux-gnu"}, ("asimd",)),
    ),
)
