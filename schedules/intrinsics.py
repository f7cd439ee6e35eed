"""Tensor intrinsics: what one dot-product instruction computes, and the instruction itself.

Every intrinsic is a pair of functions over the same buffers: the *description* states its integer
semantics with plain loops (this is what tensorisation matches and what the tests compare with), the
*implementation* is the instruction. Both are parsed from text on first use: decorating functions at
import time costs seconds when torch is installed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from targets import DotInstruction

_DESCRIPTION = """
@T.prim_func(s_tir=True)
def description(
    A: T.Buffer(({depth},), "{lhs}", offset_factor=1),
    B: T.Buffer(({lanes}, {depth}), "{rhs}", offset_factor=1),
    C: T.Buffer(({lanes},), "int32", offset_factor=1),
) -> None:
    with T.sblock("root"):
        T.reads(C[0:{lanes}], A[0:{depth}], B[0:{lanes}, 0:{depth}])
        T.writes(C[0:{lanes}])
        for i in T.serial(0, {lanes}):
            for k in T.serial(0, {depth}):
                with T.sblock("update"):
                    vi, vk = T.axis.remap("SR", [i, k])
                    C[vi] = C[vi] + T.cast(A[vk], "int32") * T.cast(B[vi, vk], "int32")
"""

_IMPLEMENTATION = """
@T.prim_func(s_tir=True)
def implementation(
    A: T.Buffer(({depth},), "{lhs}", offset_factor=1),
    B: T.Buffer(({lanes}, {depth}), "{rhs}", offset_factor=1),
    C: T.Buffer(({lanes},), "int32", offset_factor=1),
) -> None:
    with T.sblock("root"):
        T.reads(C[0:{lanes}], A[0:{depth}], B[0:{lanes}, 0:{depth}])
        T.writes(C[0:{lanes}])
        C[T.ramp(T.int32(0), 1, {lanes})] = {body}
"""

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
            T.cast(B.vload([0, 0], dtype="int8x16"), "int16x16"))"""

_BODIES = {
    "vpdpbusd_512": _VPDPBUSD_512,
    "vpdpbusd_256": _VPDPBUSD_256,
    "vpmaddwd_256": _VPMADDWD_256,
}


@dataclass(frozen=True)
class DotIntrinsic:
    """A registered tensor intrinsic.

    Attributes
    ----------
    name
        Name under which TVM knows it.
    dot
        Its shape: ``C[lanes] += A[depth] . B[lanes, depth]``.
    """

    name: str
    dot: DotInstruction


def known_intrinsics() -> tuple[str, ...]:
    """Names of the dot-product instructions there is an implementation of."""
    return tuple(_BODIES)


def intrinsic_sources(dot: DotInstruction) -> tuple[str, str]:
    """Text of the description and of the implementation of `dot`.

    Raises
    ------
    KeyError
        If there is no implementation of that name.
    """
    shape = {"lanes": dot.lanes, "depth": dot.depth, "lhs": dot.lhs_dtype, "rhs": dot.rhs_dtype}
    description = _DESCRIPTION.format(**shape)
    implementation = _IMPLEMENTATION.format(body=_BODIES[dot.name], **shape)
    return description, implementation


@cache
def dot_intrinsic(dot: DotInstruction) -> DotIntrinsic | None:
    """Register the intrinsic of `dot` with TVM once.

    Returns
    -------
    DotIntrinsic or None
        None where the target has no dot-product instruction, so that the compiler vectorises plain
        loops.
    """
    if dot.name == "none":
        return None
    from tvm.s_tir import TensorIntrin
    from tvm.script import from_source

    description, implementation = intrinsic_sources(dot)
    name = f"ibert.{dot.name}"
    TensorIntrin.register(
        name, from_source(description), from_source(implementation), override=True
    )
    return DotIntrinsic(name, dot)
