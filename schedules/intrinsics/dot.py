"""Dot-product instructions of all families as tensor intrinsics."""

from __future__ import annotations

from collections.abc import Callable

from ibert_tvm.targets import DotInstruction

from . import neon, wasm, x86
from .matrix import matrix_sources
from .registration import Operand, Sources, nest, register, sources_of

# One file per family of instructions: what is added to ``C[0:lanes]``, as an expression of
# TVMScript that takes so many groups of products.
_BODIES: dict[str, Callable[[int], str]] = {**x86.BODIES, **neon.BODIES, **wasm.BODIES}


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
    shape: tuple[int, ...] = (lanes, depth)
    entry = "vi, vk"
    if groups > 1:
        shape, entry = (groups, lanes, depth), f"vk // {depth}, vi, vk % {depth}"
    operands = {
        "A": Operand((groups * depth,), dot.lhs_dtype),
        "B": Operand(shape, dot.rhs_dtype),
        "C": Operand((lanes,), "int32"),
    }
    product = f'T.cast(A[vk], "int32") * T.cast(B[{entry}], "int32")'
    loops = nest(f"C[vi] = C[vi] + {product}", i=lanes, k=groups * depth)
    once = f"C[T.ramp(T.int32(0), 1, {lanes})] = {_BODIES[dot.name](groups)}"
    name = dot.name + (f"_x{groups}" if groups > 1 else "")
    return sources_of(name, operands, loops, [once])


def dot_intrinsic(dot: DotInstruction, groups: int = 1) -> str | None:
    """Register the intrinsic of `dot` with TVM; return its name.

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
    return None if dot.name == "none" else register(intrinsic_sources(dot, groups))
