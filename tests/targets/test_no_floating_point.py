"""The exported library holds no floating-point instruction, and calls nothing that would."""

from __future__ import annotations

from pathlib import Path

import pytest

from ibert_tvm.targets import get_target
from ibert_tvm.targets.library_audit import audit_library
from ibert_tvm.targets.machines.x86_64 import X86_64
from tests.examples import examples
from tests.targets.encoder_library import build_encoder

FLOATING = """addss vaddps subsd vmulpd divsd sqrtss vrsqrt14ps rcpps minss vmaxpd cmpltps vcmpps
    ucomiss vcomisd roundss vrndscaleps vfmadd231ps vfnmsub132sd haddps dpps cvtsi2sd vcvtdq2ps
    cvttps2dq vcvtph2ps vcvtneps2bf16 vdpbf16ps fld fadd fistp fsqrt vaddph vfmadd213sh vreducepd
    tdpbf16ps tdpfp16ps tdphbf8ps tcmmimfp16ps tmmultf32ps ttdpbf16ps"""
BENIGN = """movaps vmovups movdqa vmovss movsd vxorps andps orpd vandnps shufps vpermilps vblendvps
    vbroadcastss unpcklps vinsertf128 vextractf64x4 vpermt2ps movmskps paddd vpmaddwd vpdpbusd
    pmulld vpsravd imul idiv div mul add sub cmp min fxsave fxrstor vpminsd vpcmpgtd cmpxchg
    vpcompressd vpexpandd vmovdqu8 vcompressps addq vpsubd vpmaxsd cdq cvt
    ldtilecfg tileloadd tdpbusd tdpbssd tdpbuud tilestored tilezero tilerelease test"""


@pytest.mark.parametrize("mnemonic", FLOATING.split())
def test_the_audit_knows_floating_point(mnemonic: str) -> None:
    assert X86_64.is_floating_point(mnemonic, "", True)


@pytest.mark.parametrize("mnemonic", BENIGN.split())
def test_the_audit_knows_integers_in_vector_registers(mnemonic: str) -> None:
    assert not X86_64.is_floating_point(mnemonic, "", True)


CASES = [
    ("x86-64", {"preset": "accurate"}),
    ("x86-64", {"preset": "paper"}),
    ("x86-64-v3", {"preset": "accurate"}),
    ("x86-64-v3", {"preset": "paper", "roberta": True}),
    ("x86-avx512-vnni", {"preset": "accurate", "roberta": True}),
    ("x86-avx512-vnni", {"preset": "paper"}),
    ("x86-avx512-vnni", {"activation": "relu"}),
    ("x86-amx", {"preset": "accurate", "roberta": True}),
]


@pytest.mark.slow
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
    assert audit_library(library, get_target(target)).findings == ()


@pytest.mark.parametrize(
    "name", ["__truncsfhf2", "__extendhfsf2", "__floatsisf", "__mulsf3", "expf", "sqrt", "tanh"]
)
def test_helpers_are_recognised(name: str) -> None:
    assert X86_64.is_float_function(name)


def test_libraries_may_call_memory_threads_and_tvm_alone() -> None:
    called = [
        "arch_prctl",
        "memcpy",
        "pthread_create",
        "TVMFFIErrorSetRaised",
        "__TVMBackendParallelLaunch",
    ]
    assert all(map(X86_64.is_call, called))
    assert not any(map(X86_64.is_call, ["mprotect", "mmap", "dlsym", "syscall", "expf", "write"]))
