"""Sources for any compiler, which the build machine's own checks: x86-64 without its vectors."""

from __future__ import annotations

import re
from dataclasses import replace

from .code import Function, StackRules
from .record import BareMetal, Machine, Toolchain
from .x86_64 import X86_64

_LOWERED = r"rsp,(0x[0-9a-f]+)"


def _lowered(function: Function, index: int) -> int:
    """Pushes, subtractions and alignments; a call has put the address to return to before them."""
    one = function.instructions[index]
    called = 8 if index == 0 else 0
    if one.mnemonic == "push":
        return called + 8
    amount = re.fullmatch(_LOWERED, one.operands)
    if amount is None or one.mnemonic not in ("sub", "add", "and"):
        return called
    value = int(amount[1], 16)
    negative = 2**64 - value
    if one.mnemonic == "sub":
        return called + (value if value < 2**63 else 0)
    return called + (negative if value >= 2**63 else 0)


C99: Machine = replace(
    X86_64,
    name="c99",
    title="C99",
    integer_helpers=frozenset(),
    toolchains={"": Toolchain("x86_64-linux-gnu", "gcc")},
    system=BareMetal(
        stack=StackRules(_lowered, X86_64.flow),
        start_up=(),
        compilers="1",
        pointer=1,  # R_X86_64_64
        any_compiler=True,
    ),
)
