"""Libraries for AVX-VNNI keep to it: VEX encoding, registers of 256 bits, nothing of AVX-512."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ibert_tvm.targets.machines.x86_64 import X86_64
from tests.examples import examples
from tests.processes import run_captured
from tests.targets.encoder_library import build_encoder


@pytest.mark.slow
@pytest.mark.parametrize("preset", examples(["accurate", "paper"], "accurate"))
def test_a_library_holds_vex_vpdpbusd_and_no_avx512(preset: str, tmp_path: Path) -> None:
    build = build_encoder("x86-avx-vnni", hidden=64, heads=2, feed_forward=96, preset=preset)
    library = build.export(tmp_path / "model.so")
    listing = run_captured(["objdump", "-d", "--no-show-raw-insn", str(library)], check=True).stdout
    dots = re.findall(r"(\{vex\} )?vpdpbusd\s+(.*)", listing)
    assert len(dots) > 50
    for vex, operands in dots:
        assert vex, operands
        assert "%ymm" in operands
    # The disassembler of the other tests does not know AVX-VNNI; this one writes mnemonics alike.
    instruction = re.compile(
        r"^\s+[0-9a-f]+:\s+(?:\{vex\} |lock |rep\w* |notrack |bnd )*(\w+)", re.M
    )
    mnemonics = set(instruction.findall(listing))
    assert {"vpdpbusd", "ret", "mov"} <= mnemonics
    assert {name for name in mnemonics if X86_64.is_floating_point(name, "", True)} == set()
    # Registers of 512 bits, registers 16 and up, masks: all of them need AVX-512.
    assert not re.search(r"%zmm|%[xy]mm(1[6-9]|2\d|3[01])\b|%k[0-7]\b", listing)
