"""WebAssembly, in browsers and in Node.js."""

from __future__ import annotations

import re

from ..web.binary import WASM
from .code import FlowRules
from .record import Emulator, Machine, Toolchain, WebPage


def _is_floating_point(mnemonic: str, operands: str, has_registers: bool) -> bool:
    # Of f32.add, i32.trunc_f32_s and f64x2.promote_low_f32x4 alike.
    return re.search(r"f(32|64)", mnemonic) is not None


def _nothing(*_of: object) -> None:
    """No instruction goes on elsewhere, or takes an address."""


WASM32 = Machine(
    name="wasm32",
    title="WebAssembly",
    elf_machine="",
    bits=32,
    triples=re.compile("wasm32"),
    is_floating_point=_is_floating_point,
    # Control is structured: engines refuse a module whose branches leave their function.
    flow=FlowRules(_nothing, _nothing, arguments=frozenset(), preserved=frozenset()),
    objects=WASM,
    toolchains={"": Toolchain("wasm32", "clang-14 lld-14", command="clang-14 --target=wasm32")},
    emulator=Emulator("node", "nodejs"),
    system=WebPage(),
)
