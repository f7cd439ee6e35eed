"""Dot-product instructions of all families as tensor intrinsics."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from ibert_tvm.targets import DotInstruction

from . import neon, x86
from .matrix import matrix_sources
from .registration import Sources, register, sources_of

# One file per family of instructions: what is added to ``C[0:lanes]``, as an expression of
# TVMScript that takes so many groups of products.
_BODIES: dict[str, Callable[[int], str]] = {**x86.BODIES, **neon.BODIES}

_SIGNATURE = """
@T.prim_func(s_tir=True)
def {which}(
    A: T.Buffer(({span},), "{lhs}", offset_factor=1),
    B: T.Buffer({weights}, "{rhs}", offset_factor=1),
    C: T.Buffer(({lanes},), "int32", offset_factor=1),
) -> None:
    with T.sblock("root"):
        T.reads(C[0:{lanes}], A[0:{span}], B[{region}])
        T.writes(C[0:{lanes}])
        {body}
"""

_BY_LOOPS = """for i in T.serial(0, {lanes}):
            for k in T.serial(0, {span}):
                with T.sblock("update"):
                    vi, vk = T.axis.remap("SR", [i, k])
                    C[vi] = C[vi] + T.cast(A[vk], "int32") * T.cast(B[{entry}], "int32")"""

_AT_ONCE = "C[T.ramp(T.int32(0), 1, {lanes})] = {value}"


def known_intrinsics() -> tuple[str, ...]:
    """Names of the dot-product instructions there is an implementation of."""
    return (*_BODIES, *neon.MATRIX_BODIES)


def intrinsic_sources(dot: DotInstruction, groups: int = 1) -> Sources:
    """Text of the description and of the implementation of `dot`.

    ``C[i] += sum_k A[k] B[i, k]``, and of several groups ``C[i] += sum_k A[k] B[k // depth, i, k %
    depth]``; an instruction on several rows is that of `matrix_sources`, of one group.

    Parameters
    ----------
    dot
        The instruction.
    groups
        Groups of ``dot.depth`` products.

    Raises
    ------
    KeyError
        If there is no implementation of that name.
    """
    if dot.rows > 1:
        return matrix_sources(dot, neon.MATRIX_BODIES[dot.name])
    lanes, depth = dot.lanes, dot.depth
    shape = {"lhs": dot.lhs_dtype, "rhs": dot.rhs_dtype, "lanes": lanes, "span": groups * depth}
    if groups == 1:
        shape.update(weights=f"({lanes}, {depth})", region=f"0:{lanes}, 0:{depth}")
        entry = "vi, vk"
    else:
        shape.update(
            weights=f"({groups}, {lanes}, {depth})",
            region=f"0:{groups}, 0:{lanes}, 0:{depth}",
        )
        entry = f"vk // {depth}, vi, vk % {depth}"
    loops = _BY_LOOPS.format(lanes=lanes, span=groups * depth, entry=entry)
    once = _AT_ONCE.format(lanes=lanes, value=_BODIES[dot.name](groups))
    return sources_of(_SIGNATURE, loops, once, **shape)


@cache
def dot_intrinsic(dot: DotInstruction, groups: int = 1) -> str | None:
    """Register the intrinsic of `dot` with TVM once; return its name.

    Parameters
    ----------
    dot
        The instruction.
    groups
        Groups of ``dot.depth`` products that it takes, at most ``dot.groups``.

    Returns
    -------
    str or None
        None where the target has no dot-product instruction, so that the compiler vectorises plain
        loops.
    """
    if dot.name == "none":
        return None
    name = f"ibert.{dot.name}" + (f"_x{groups}" if groups > 1 else "")
    return register(name, intrinsic_sources(dot, groups))
