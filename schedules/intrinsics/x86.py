"""Dot products of x86: AVX512-VNNI, AVX-VNNI, and AVX2 with 16-bit operands."""

from __future__ import annotations

from collections.abc import Callable

# C + dot4(u8, s8): the four bytes of A are broadcast to all lanes. LLVM 22 types the operands as
# bytes.
_VPDPBUSD_512 = """T.call_llvm_pure_intrin(
            "int32x16", "llvm.x86.avx512.vpdpbusd.512",
            C.vload([0], dtype="int32x16"),
            T.reinterpret(
                T.broadcast(T.reinterpret(A.vload([0], dtype="uint8x4"), dtype="int32"), 16),
                dtype="int8x64"),
            B.vload([0, 0], dtype="int8x64"))"""

# The same on eight lanes: one intrinsic, which LLVM encodes for AVX-VNNI or for AVX512-VL.
_VPDPBUSD_256 = """T.call_llvm_pure_intrin(
            "int32x8", "llvm.x86.avx512.vpdpbusd.256",
            C.vload([0], dtype="int32x8"),
            T.reinterpret(
                T.broadcast(T.reinterpret(A.vload([0], dtype="uint8x4"), dtype="int32"), 8),
                dtype="int8x32"),
            B.vload([0, 0], dtype="int8x32"))"""

# Exact on AVX2: both operands are 16 bits wide, each pair of products fits 32 bits.
_VPMADDWD_256 = """C.vload([0], dtype="int32x8") + T.call_llvm_pure_intrin(
            "int32x8", "llvm.x86.avx2.pmadd.wd",
            T.reinterpret(
                T.broadcast(T.reinterpret(A.vload([0], dtype="int16x2"), dtype="int32"), 8),
                dtype="int16x16"),
            {vector})"""

BODIES: dict[str, Callable[[int], str]] = {
    "vpdpbusd_512": lambda _groups: _VPDPBUSD_512,
    "vpdpbusd_256": lambda _groups: _VPDPBUSD_256,
    "vpmaddwd_256": lambda _groups: _VPMADDWD_256.format(
        vector='T.cast(B.vload([0, 0], dtype="int8x16"), "int16x16")'
    ),
    "vpmaddwd_256_short": lambda _groups: _VPMADDWD_256.format(
        vector='B.vload([0, 0], dtype="int16x16")'
    ),
}
"""What an instruction adds to ``C[0:lanes]``, by its name. All take one group of products."""
