"""Dot products of x86: AVX512-VNNI, AVX-VNNI, and AVX2 with 16-bit operands."""

from __future__ import annotations

from collections.abc import Callable


def _vpdpbusd(lanes: int) -> str:
    """C + dot4(u8, s8): the four bytes of A are broadcast to all lanes.

    LLVM 22 types the operands as bytes. On eight lanes it encodes the intrinsic for AVX-VNNI or for
    AVX512-VL.
    """
    activations = _broadcast("uint8x4", lanes, f"int8x{4 * lanes}")
    return (
        f'T.call_llvm_pure_intrin("int32x{lanes}", "llvm.x86.avx512.vpdpbusd.{32 * lanes}", '
        f'C.vload([0], dtype="int32x{lanes}"), {activations}, '
        f'B.vload([0, 0], dtype="int8x{4 * lanes}"))'
    )


def _vpmaddwd(weights: str) -> str:
    """Exact on AVX2: both operands are 16 bits wide, each pair of products fits 32 bits."""
    activations = _broadcast("int16x2", 8, "int16x16")
    return (
        'C.vload([0], dtype="int32x8") + T.call_llvm_pure_intrin('
        f'"int32x8", "llvm.x86.avx2.pmadd.wd", {activations}, {weights})'
    )


def _broadcast(dtype: str, lanes: int, vector: str) -> str:
    """What A has in 32 bits, in all lanes of a vector of that type."""
    number = f'T.reinterpret(A.vload([0], dtype="{dtype}"), dtype="int32")'
    return f'T.reinterpret(T.broadcast({number}, {lanes}), dtype="{vector}")'


def _of_one_group(body: str) -> Callable[[int], str]:
    return lambda _groups: body


BODIES: dict[str, Callable[[int], str]] = {
    "vpdpbusd_512": _of_one_group(_vpdpbusd(16)),
    "vpdpbusd_256": _of_one_group(_vpdpbusd(8)),
    "vpmaddwd_256": _of_one_group(
        _vpmaddwd('T.cast(B.vload([0, 0], dtype="int8x16"), "int16x16")')
    ),
    "vpmaddwd_256_short": _of_one_group(_vpmaddwd('B.vload([0, 0], dtype="int16x16")')),
}
"""What an instruction adds to ``C[0:lanes]``, by its name. All take one group of products."""
