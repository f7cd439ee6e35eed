"""The audit on code that is hidden from whoever believes section headers or decodes in a line."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from ibert_tvm.targets.library_audit import audit_library
from ibert_tvm.targets.toolchain import find_linker
from tests.arm.tools import board
from tests.verification.corpus import link_flags

_THUMB = ".syntax unified\n.thumb\n.text\n.globl f\n.type f, %function\n.thumb_func\n"
_RISC_V = ".option arch, +zicsr\n.option norelax\n.text\n.globl f\n.type f, @function\n"
BEGINNINGS = {
    "x86-64": ".intel_syntax noprefix\n.text\n.globl f\n.type f, @function\n",
    "rpi4": ".text\n.globl f\n.type f, %function\n",
    "armv7-neon": ".arm\n.text\n.globl f\n.type f, %function\n",
    **dict.fromkeys(("cortex-m0", "cortex-m4"), _THUMB),
    **dict.fromkeys(("rv32imc", "rv64gc", "rv64gcv"), _RISC_V),
}


class Hidden(NamedTuple):
    """A library: target, assembly, a part of what the audit says, flags of the linker and more."""

    target: str
    source: str
    finding: str
    options: list[str]


def _hidden() -> dict[str, Hidden]:
    found = {}
    text = Path(__file__).with_name("hidden_code.txt").read_text(encoding="utf-8")
    for case in text.split("\n## ")[1:]:
        title, source = case.split("\n", 1)
        name, target, finding, *options = title.split(" | ")
        found[name] = Hidden(target, BEGINNINGS[target] + source, finding, options)
    return found


HIDDEN = _hidden()


def _linked(name: str, folder: Path) -> Path:
    """The library of a name."""
    hidden = HIDDEN[name]
    target = board(hidden.target, run=False)
    (folder / "hidden.s").write_text(hidden.source, encoding="utf-8")
    path = folder / "hidden.so"
    flags = [word for word in hidden.options if word != "no sections"]
    command = [*find_linker(target), *link_flags(target), *flags, "hidden.s", "-o", path]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    if "no sections" in hidden.options:
        content = bytearray(path.read_bytes())
        content[0x28:0x30] = bytes(8)  # e_shoff
        content[0x3C:0x40] = bytes(4)  # e_shnum, e_shstrndx
        path.write_bytes(content)
    return path


@pytest.mark.parametrize("name", HIDDEN)
def test_hidden_code_is_found(name: str, tmp_path: Path) -> None:
    path = _linked(name, tmp_path)
    findings = audit_library(path, board(HIDDEN[name].target, run=False)).findings
    assert any(HIDDEN[name].finding in finding for finding in findings), findings
