"""The exported library holds no floating-point instruction, and calls nothing that would."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from ibert_tvm.targets import get_target
from ibert_tvm.targets.machines.x86_64 import X86_64
from ibert_tvm.targets.toolchain import find_linker
from tests.examples import examples
from tests.targets.encoder_library import build_encoder
from tests.targets.fp_audit import floating_point_instructions, is_floating_point

pytest.importorskip("capstone", reason="the disassembler comes with the extra `verify`")

FLOATING = """addss vaddps subsd vmulpd divsd sqrtss vrsqrt14ps rcpps minss vmaxpd cmpltps vcmpps
    ucomiss vcomisd roundss vrndscaleps vfmadd231ps vfnmsub132sd haddps dpps cvtsi2sd vcvtdq2ps
    cvttps2dq vcvtph2ps vcvtneps2bf16 vdpbf16ps fld fadd fistp fsqrt vaddph vfmadd213sh vreducepd"""
BENIGN = """movaps vmovups movdqa vmovss movsd vxorps andps orpd vandnps shufps vpermilps vblendvps
    vbroadcastss unpcklps vinsertf128 vextractf64x4 vpermt2ps movmskps paddd vpmaddwd vpdpbusd
    pmulld vpsravd imul idiv div mul add sub cmp min fxsave fxrstor vpminsd vpcmpgtd cmpxchg
    vpcompressd vpexpandd vmovdqu8 vcompressps addq vpsubd vpmaxsd cdq cvt"""


@pytest.mark.parametrize("mnemonic", FLOATING.split())
def test_the_audit_knows_floating_point(mnemonic: str) -> None:
    assert is_floating_point(mnemonic)


@pytest.mark.parametrize("mnemonic", BENIGN.split())
def test_the_audit_knows_integers_in_vector_registers(mnemonic: str) -> None:
    assert not is_floating_point(mnemonic)


def test_the_audit_finds_a_float_in_a_library(tmp_path: Path) -> None:
    source, library = tmp_path / "float.c", tmp_path / "float.so"
    source.write_text("float scaled(float x, int y) { return x * y; }\n", encoding="utf-8")
    linker = find_linker(get_target("x86-64"))
    command = [*linker, "-O2", "-shared", "-fPIC", "-o", str(library), str(source)]
    subprocess.run(command, check=True)
    found = [line.split()[:2] for line in floating_point_instructions(library)]
    assert ["scaled:", "mulss"] in found
    assert ["scaled:", "cvtsi2ss"] in found


CASES = [
    ("x86-64", {"preset": "accurate"}),
    ("x86-64", {"preset": "paper"}),
    ("x86-64-v3", {"preset": "accurate"}),
    ("x86-64-v3", {"preset": "paper", "roberta": True}),
    ("x86-avx512-vnni", {"preset": "accurate", "roberta": True}),
    ("x86-avx512-vnni", {"preset": "paper"}),
    ("x86-avx512-vnni", {"activation": "relu"}),
]


@pytest.mark.parametrize(
    ("target", "settings"),
    examples(
        CASES,  # of the preset `accurate`, aot/test_library.py has one
        ("x86-64-v3", {"preset": "paper", "roberta": True}),
        unpack=True,
    ),
    ids=lambda value: value if isinstance(value, str) else "-".join(map(str, value.values())),
)
def test_no_instruction_computes_with_floats(target: str, settings: dict, tmp_path: Path) -> None:
    # Sizes with whole vectors and with rests.
    build = build_encoder(target, hidden=36, heads=2, feed_forward=48, **settings)
    library = build.export(tmp_path / "model.so")
    assert list(floating_point_instructions(library)) == []


@pytest.mark.parametrize(
    "name", ["__truncsfhf2", "__extendhfsf2", "__floatsisf", "__mulsf3", "expf", "sqrt", "tanh"]
)
def test_helpers_are_recognised(name: str) -> None:
    assert X86_64.is_float_function(name)


@pytest.mark.slow
def test_no_symbol_is_a_helper_of_floating_point(library: Path) -> None:
    with library.open("rb") as stream:
        elf = ELFFile(stream)
        names = {
            symbol.name.partition("@")[0]
            for table in (".symtab", ".dynsym")
            for symbol in elf.get_section_by_name(table).iter_symbols()
        }
        needed = {
            tag.needed
            for tag in elf.get_section_by_name(".dynamic").iter_tags()
            if tag.entry.d_tag == "DT_NEEDED"
        }
        undefined = {
            symbol.name
            for symbol in elf.get_section_by_name(".dynsym").iter_symbols()
            if symbol["st_shndx"] == "SHN_UNDEF" and symbol.name
        }
    assert {name for name in names if X86_64.is_float_function(name)} == set()
    assert not any(library.startswith("libm.") for library in needed)
    # What remains open: memory, threads, the C runtime's hooks, TVM's errors, and what tells about
    # the machine.
    runtime = re.compile(
        r"__cxa_finalize|_ITM_\w+|__gmon_start__|mem(set|cpy|move)|TVM\w+"
        r"|pthread_\w+|sched_yield|sigfillset|__tls_get_addr|__register_atfork"
        r"|uname|sysconf|getauxval|open|read|close|str(chr|str)"
    )
    assert {name for name in undefined if not runtime.fullmatch(name)} == set()
