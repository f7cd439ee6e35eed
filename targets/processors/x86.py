"""x86-64 processors: plain, AVX2, VNNI on registers of 256 or 512 bits, and AMX.

Feature lists are those of the psABI levels (x86-64-v3) and of LLVM's ``cascadelake``, reduced to
the flags that distinguish them. The instruction ``vpmaddubsw`` is used nowhere: its 16-bit sum
saturates, so it is wrong on real data; hosts without VNNI widen to 16 bits and use ``vpmaddwd``,
which is exact.

AVX-VNNI is ``vpdpbusd`` on 256-bit registers in the VEX encoding, for processors without AVX-512.
"""

from __future__ import annotations

from dataclasses import replace

from ..description import DotInstruction, TargetDescription
from ..machines.x86_64 import V2_FEATURES
from ..machines.x86_64 import X86_64 as MACHINE

VNNI_512 = DotInstruction("vpdpbusd_512", "uint8", "int8", 16, 4, tile_rows=8, tile_vectors=3)
# 12 accumulators, two weights and the broadcast activation: 15 of 16 ymm registers.
VNNI_256 = DotInstruction("vpdpbusd_256", "uint8", "int8", 8, 4, tile_rows=6, tile_vectors=2)
# Two products per accumulator: vpmaddwd on operands widened to 16 bits. 16 ymm registers.
MADD_256 = DotInstruction(
    "vpmaddwd_256", "int16", "int8", 8, 2, tile_rows=4, tile_vectors=2, short="vpmaddwd_256_short"
)
# By a microkernel (targets/microkernels), two by two tiles of 16 rows by 16 columns at a time.
# Weights lie as for VNNI_512.
TILES = DotInstruction("tdpbusd", "uint8", "int8", 16, 4, tile_rows=32, tile_vectors=4)
NO_DOT_128 = DotInstruction("none", "int8", "int8", 4, 1, tile_rows=4, tile_vectors=2)

_V3 = (*V2_FEATURES, "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave")
_VNNI = (*_V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512_vnni")

# Every block of code starts in a cache line of its own (2^6 bytes). The loop over one step of an
# AVX2 product is 24 instructions in 122 bytes, which an AMD Zen 3 fetches 11% slower where they
# start in the second half of a line: without this, all code in front would decide that.
_ALIGNED = {"cl-opt": ["-align-all-blocks:uint=6"]}

_PMULHRSW_256 = ((8, "llvm.x86.ssse3.pmul.hr.sw.128"), (16, "llvm.x86.avx2.pmul.hr.sw"))
_PMULHRSW_512 = (*_PMULHRSW_256, (32, "llvm.x86.avx512.pmul.hr.sw.512"))


def _x86(
    name: str,
    description: str,
    processor: dict[str, object],
    dot: DotInstruction,
    features: tuple[str, ...] = (),
    q15_multiply: tuple[tuple[int, str], ...] = (),
) -> TargetDescription:
    """A processor whose row operations take as many numbers of 16 bits as fill a register."""
    return TargetDescription(
        name=name,
        description=description,
        machine=MACHINE,
        tvm_target={"kind": "llvm", "mtriple": "x86_64-linux-gnu", **processor},
        dot=dot,
        vector_lanes=2 * dot.lanes,
        required_features=features,
        prefetches_weights=bool(features),
        q15_multiply=q15_multiply,
    )


X86_64 = _x86(
    "x86-64",
    "any x86-64 processor (SSE2), no dot-product instruction; slow, exact",
    {"mcpu": "x86-64"},
    NO_DOT_128,
)

X86_64_V3 = _x86(
    "x86-64-v3",
    "x86-64 with AVX2 (Haswell, Zen and newer), exact 16-bit multiply-add",
    {"mcpu": "x86-64-v3", **_ALIGNED},
    MADD_256,
    _V3,
    _PMULHRSW_256,
)

X86_AVX_VNNI = _x86(
    "x86-avx-vnni",
    "x86-64 with AVX-VNNI (Alder Lake, Sierra Forest and newer), 256-bit registers",
    {"mcpu": "x86-64-v3", "mattr": ["+avxvnni"]},
    VNNI_256,
    (*_V3, "avx_vnni"),
    _PMULHRSW_256,
)

X86_AVX512_VNNI = _x86(
    "x86-avx512-vnni",
    "x86-64 with AVX-512 VNNI (Cascade Lake, Ice Lake, Zen 4 and newer)",
    {"mcpu": "cascadelake"},
    VNNI_512,
    _VNNI,
    _PMULHRSW_512,
)

X86_AMX = replace(
    X86_AVX512_VNNI,
    name="x86-amx",
    description="x86-64 with AMX (Sapphire Rapids and newer), tiles of bytes",
    dot=TILES,
    required_features=(*_VNNI, "amx_tile", "amx_int8"),
    prefetches_weights=False,
    microkernels=("amx.c",),
    microkernel_flags=("-mamx-tile", "-mamx-int8"),
    stack_alignment=64,
)
