"""x86-64 under Linux."""

from __future__ import annotations

import re

from .record import Driver, Linux, Machine

_TYPE = r"(?:[sp][sdh]|nepbf16|pbf16)"
_FLOATING = re.compile(
    # arithmetic, comparison, minimum, square root, rounding, fused multiply-add
    r"v?(?:add|sub|mul|div|sqrt|rsqrt(?:14|28)?|rcp(?:14|28)?|min|max|cmp\w*|u?comi|round|rndscale"
    r"|reduce|range|fixupimm|getexp|getmant|scalef|addsub|hadd|hsub|dp|exp2|fpclass"
    rf"|fn?m(?:add|sub|addsub|subadd)\d*|fc?m(?:add|ul)c){_TYPE}"
    # conversions from, to and between floats; dot products of bfloat16
    r"|v?cvt\w+|vdpbf16ps|vdpphps"
    # x87, whose mnemonics all begin with f; and its saved state
    r"|f(?!xsave|xrstor|emms)\w+"
)


def _is_floating_point(mnemonic: str, operands: str, has_registers: bool) -> bool:
    return _FLOATING.fullmatch(mnemonic) is not None


V2_FEATURES = ("cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3")
"""Of x86-64-v2 in the psABI, as ``/proc/cpuinfo`` names them."""

X86_64 = Machine(
    name="x86-64",
    title="x86-64",
    elf_machine="EM_X86_64",
    bits=64,
    triples=re.compile("x86_64|amd64"),
    is_floating_point=_is_floating_point,
    disassembler={"": ("-M", "intel")},
    general_registers=("-mgeneral-regs-only",),
    toolchains={},
    emulator=None,
    system=Linux(
        names=("x86_64", "amd64"),
        runtimes=("tvm", "none"),
        driver=Driver({"mcpu": "x86-64-v2", "mtriple": "x86_64-linux-gnu"}, V2_FEATURES),
    ),
)
