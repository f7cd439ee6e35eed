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

# Left to itself, LLVM's vectoriser reduces several rows at once with gathers.
_REDUCTION = """
@T.prim_func(s_tir=True)
def {which}(
    A: T.Buffer(({lanes},), "int32", offset_factor=1),
    C: T.Buffer((1,), "int32", offset_factor=1),
) -> None:
    with T.sblock("root"):
        T.reads(C[0], A[0:{lanes}])
        T.writes(C[0])
        {body}
"""

_REDUCED_BY_LOOP = """for i in T.serial(0, {lanes}):
            with T.sblock("update"):
                vi = T.axis.remap("R", [i])
                C[0] = {combined}"""

_REDUCED_AT_ONCE = """C[0] = {combined}"""

_COMBINED = {
    "max": ("T.max(C[0], {value})", "smax"),
    "sum": ("C[0] + {value}", "add"),
}

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


def reduction_sources(kind: str, lanes: int) -> tuple[str, str]:
    """Text of the description and of the implementation of a horizontal reduction.

    Parameters
    ----------
    kind
        "max" or "sum".
    lanes
        Number of int32 lanes.
    """
    combined, operation = _COMBINED[kind]
    loop = _REDUCED_BY_LOOP.format(lanes=lanes, combined=combined.format(value="A[vi]"))
    value = (
        f'T.call_llvm_pure_intrin("int32", "llvm.vector.reduce.{operation}.v{lanes}i32", '
        f'A.vload([0], dtype="int32x{lanes}"))'
    )
    once = _REDUCED_AT_ONCE.format(combined=combined.format(value=value))
    return (
        _REDUCTION.format(which="description", lanes=lanes, body=loop),
        _REDUCTION.format(which="implementation", lanes=lanes, body=once),
    )


@cache
def reduction_intrinsic(kind: str, lanes: int) -> str:
    """Register ``C[0] = combine(C[0], A[0:lanes])`` with TVM once; return its name.

    Parameters
    ----------
    kind
        "max" or "sum".
    lanes
        Number of int32 lanes.
    """
    from tvm.s_tir import TensorIntrin
    from tvm.script import from_source

    description, implementation = reduction_sources(kind, lanes)
    name = f"ibert.reduce_{kind}_{lanes}"
    TensorIntrin.register(
        name, from_source(description), from_source(implementation), override=True
    )
    return name


LOADED_BYTES = 16
"""Bytes of a key's channels that its packing loads at once."""

_PACKING = """
@T.prim_func(s_tir=True)
def {which}(
    A: T.Buffer({source}, "int8", offset_factor=1, strides=[T.int32(), 1]),
    C: T.Buffer({packed}, "int8", offset_factor=1),
) -> None:
    with T.sblock("root"):
        T.reads(A[0:{rows}, 0:{columns}])
        T.writes(C[{region}])
        {body}
"""

_KEYS_BY_LOOPS = """for c, l, i in T.grid({group}, {lanes}, {depth}):
            with T.sblock("update"):
                vc, vl, vi = T.axis.remap("SSS", [c, l, i])
                C[vc, vl, vi] = A[vl, vc * {depth} + vi]"""

_VALUES_BY_LOOPS = """for l, i in T.grid({lanes}, {depth}):
            with T.sblock("update"):
                vl, vi = T.axis.remap("SS", [l, i])
                C[vl, vi] = A[vi, vl]"""


def key_packing_sources(lanes: int, depth: int) -> tuple[str, str]:
    """Text of the description and of the implementation of packing `lanes` keys.

    ``C[c, l, i] = A[l, c depth + i]``: groups of `depth` channels are transposed as numbers.
    """
    group = LOADED_BYTES // depth
    shape = {
        "source": f"({lanes}, {LOADED_BYTES})",
        "packed": f"({group}, {lanes}, {depth})",
        "rows": lanes,
        "columns": LOADED_BYTES,
        "region": f"0:{group}, 0:{lanes}, 0:{depth}",
    }
    loops = _KEYS_BY_LOOPS.format(group=group, lanes=lanes, depth=depth)
    number = f"int{8 * depth}"
    rows = ", ".join(
        f'T.reinterpret(A.vload([{row}, 0], dtype="int8x{LOADED_BYTES}"), dtype="{number}x{group}")'
        for row in range(lanes)
    )
    stores = [
        f"C.vstore([{c}, 0, 0], T.reinterpret(T.Shuffle([{rows}], "
        f'{[row * group + c for row in range(lanes)]}), dtype="int8x{lanes * depth}"))'
        for c in range(group)
    ]
    return (
        _PACKING.format(which="description", body=loops, **shape),
        _PACKING.format(which="implementation", body="\n        ".join(stores), **shape),
    )


def value_packing_sources(lanes: int, depth: int) -> tuple[str, str]:
    """Text of the description and of the implementation of packing `depth` tokens of V.

    ``C[l, i] = A[i, l]``: the bytes of `depth` tokens are interleaved.
    """
    shape = {
        "source": f"({depth}, {lanes})",
        "packed": f"({lanes}, {depth})",
        "rows": depth,
        "columns": lanes,
        "region": f"0:{lanes}, 0:{depth}",
    }
    loops = _VALUES_BY_LOOPS.format(lanes=lanes, depth=depth)
    rows = ", ".join(f'A.vload([{row}, 0], dtype="int8x{lanes}")' for row in range(depth))
    order = [row * lanes + lane for lane in range(lanes) for row in range(depth)]
    store = f"C.vstore([0, 0], T.Shuffle([{rows}], {order}))"
    return (
        _PACKING.format(which="description", body=loops, **shape),
        _PACKING.format(which="implementation", body=store, **shape),
    )


def _register_packing(name: str, sources: tuple[str, str]) -> str:
    from tvm.s_tir import TensorIntrin
    from tvm.script import from_source

    description, implementation = (from_source(source) for source in sources)
    TensorIntrin.register(name, description, implementation, override=True)
    return name


@cache
def key_packing_intrinsic(lanes: int, depth: int) -> str:
    """Register `key_packing_sources` with TVM once; return the intrinsic's name."""
    return _register_packing(f"ibert.pack_keys_{lanes}x{depth}", key_packing_sources(lanes, depth))


@cache
def value_packing_intrinsic(lanes: int, depth: int) -> str:
    """Register `value_packing_sources` with TVM once; return the intrinsic's name."""
    return _register_packing(
        f"ibert.pack_values_{lanes}x{depth}", value_packing_sources(lanes, depth)
    )
