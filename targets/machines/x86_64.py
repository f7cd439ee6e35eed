"""x86-64 under Linux."""

from __future__ import annotations

import ctypes
import re

from .code import LOADED, FlowRules, Goes, Instruction, Transfer
from .record import Driver, Linux, Machine

_TYPE = r"(?:[sp][sdh]|nepbf16|pbf16)"
_FLOATING = (
    # arithmetic, comparison, minimum, square root, rounding, fused multiply-add
    r"v?(?:add|sub|mul|div|sqrt|rsqrt(?:14|28)?|rcp(?:14|28)?|min|max|cmp\w*|u?comi|round|rndscale"
    r"|reduce|range|fixupimm|getexp|getmant|scalef|addsub|hadd|hsub|dp|exp2|fpclass"
    rf"|fn?m(?:add|sub|addsub|subadd)\d*|fc?m(?:add|ul)c){_TYPE}"
    # conversions from, to and between floats; dot products of bfloat16
    r"|v?cvt\w+|vdpbf16ps|vdpphps"
    # products of tiles that are not of bytes
    r"|t(?:t?dp(?!b[su]{2}d)|t?cmm|t?mmul)\w*"
    # x87, whose mnemonics all begin with f; and its saved state
    r"|f(?!xsave|xrstor|emms)\w+"
)


def _is_floating_point(mnemonic: str, operands: str, has_registers: bool) -> bool:
    return re.fullmatch(_FLOATING, mnemonic) is not None


_NAMED = r"[0-9a-f]+ <[^>]*>"
_BRANCHES = r"(j(?!mp)\w+|loop\w*|xbegin)"
_REFUSED = r"(j|l?call|l?jmp|sys|int|[iu]*l?ret)\w*"
# With an operand size of 16 bits, AMD's processors read 16 bits of a distance, and Intel's 32.
_PREFIXES = rb"\x26\x2e\x36\x3e\x64-\x67\xf0\xf2\xf3"
_AMBIGUOUS = rb"[%b]*\x66[%b]*(?![\x48-\x4f%b])" % ((_PREFIXES,) * 3)
_STOPS = ("ud2", "int3", "hlt", "ud1", "ud0")

_OLD = ("rax", "rbx", "rcx", "rdx", "rsi", "rdi", "rbp", "rsp")
_NEW = tuple(f"r{number}" for number in range(8, 16))
_WIDE = frozenset({*_OLD, *_NEW})
# By each name of a register or of a part of it the whole.
_PARTS = {
    **{f"{name}{part}": name for name in _NEW for part in ("", "d", "w", "b")},
    **{f"{part}{name[1:]}": name for name in _OLD for part in ("r", "e", "")},
    **{f"{name[1:]}l": name for name in _OLD[4:]},
    **{f"{name[1]}{half}": name for name in _OLD[:4] for half in "lh"},
}
_ONLY_READS = r"(cmp|test|push|bt|nop|endbr64|prefetch\w*|call|j\w+|ret)w?"
_EXCHANGES = r"(xchg|xadd|mulx|cmpxchg\w*)"
# What writes registers that are none of its operands.
_HIDDEN = (
    r"(i?div|mul|imul|c[wdq][dqe]e?|cqo|cbw|cpuid|rdtscp?|rdpmc|xgetbv|(?:lod|sto|mov|cmp|sca)s\w?"
    r"|ins|outs|loop\w*|leave|enter|cmpxchg\w*|lahf|v?pcmp[ei]str[im])"
)
_HIDDEN_REGISTERS = frozenset({"rax", "rbx", "rcx", "rdx", "rsi", "rdi", "rbp"})


def _transfer(one: Instruction) -> Transfer | None:
    name, operands = one.mnemonic, one.operands
    if name in ("jmp", "call"):
        calls = name == "call"
        if re.fullmatch(_NAMED, operands):
            return Transfer(Goes.NAMED, falls=calls, calls=calls)
        if operands in _WIDE:
            return Transfer(Goes.POINTER, operands, calls, calls)
        loads = operands.startswith("QWORD PTR [")
        return Transfer(Goes.MEMORY if loads else Goes.REFUSED, falls=calls, calls=calls)
    if re.fullmatch(_BRANCHES, name):
        return Transfer(Goes.NAMED)
    if name == "ret":
        return Transfer(Goes.RETURN, falls=False)
    if name in _STOPS:
        return Transfer(Goes.STOP, falls=False)
    return Transfer(Goes.REFUSED) if re.fullmatch(_REFUSED, name) else None


def _sources(one: Instruction, register: str) -> tuple[str, ...] | None:
    name, (first, _, rest) = one.mnemonic, one.operands.partition(",")
    if re.fullmatch(_EXCHANGES, name) and register in map(_PARTS.get, one.operands.split(",")):
        return ()
    if register in _HIDDEN_REGISTERS and re.fullmatch(_HIDDEN, name) and "xmm" not in first:
        return () if name != "imul" or not rest else _written(first, register)
    if _PARTS.get(first) != register or re.fullmatch(_ONLY_READS, name):
        return None
    if name == "pop" or (name == "lea" and "[rip" in rest):
        return (LOADED,)
    if name == "mov" and rest.startswith("QWORD PTR "):
        return (LOADED,)
    return (rest,) if name == "mov" and rest in _WIDE else ()


def _written(operand: str, register: str) -> tuple[str, ...] | None:
    return () if _PARTS.get(operand) == register else None


def _reference(one: Instruction, _: bool) -> int | None:
    return one.target if one.mnemonic == "lea" else None


_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _TILE_DATA = 158, 0x1023, 18


def _permits(feature: str) -> bool:
    """Ask for tiles, whose state the kernel keeps for processes that did, if for any."""
    if feature != "amx_tile":
        return True
    return ctypes.CDLL(None).syscall(_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _TILE_DATA) == 0


V2_FEATURES = ("cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3")
"""Of x86-64-v2 in the psABI, as ``/proc/cpuinfo`` names them."""

X86_64 = Machine(
    name="x86-64",
    title="x86-64",
    elf_machine="EM_X86_64",
    bits=64,
    triples=re.compile("x86_64|amd64"),
    is_floating_point=_is_floating_point,
    flow=FlowRules(
        _transfer,
        _sources,
        arguments=frozenset({"rdi", "rsi", "rdx", "rcx", "r8", "r9"}),
        preserved=frozenset({"rbx", "rbp", "r12", "r13", "r14", "r15"}),
        reference=_reference,
        ambiguous=_AMBIGUOUS,
        before_return=r"push\b.*|mov\s+QWORD PTR \[rsp\],.*",
    ),
    disassembler={"": ("-M", "intel")},
    general_registers=("-mgeneral-regs-only",),
    toolchains={},
    emulator=None,
    system=Linux(
        names=("x86_64", "amd64"),
        runtimes=("none", "tvm"),
        threads=True,
        driver=Driver({"mcpu": "x86-64-v2", "mtriple": "x86_64-linux-gnu"}, V2_FEATURES),
        permits=_permits,
    ),
)
