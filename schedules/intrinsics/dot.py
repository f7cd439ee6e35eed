"""Dot-product instructions of all families as tensor intrinsics."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from targets import DotInstruction

from . import x86
from .registration import register

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

# One file per family of instructions.
_BODIES = {**x86.BODIES}


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
    return DotIntrinsic(register(f"ibert.{dot.name}", intrinsic_sources(dot)), dot)
