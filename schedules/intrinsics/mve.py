"""Matrix products with the integer vectors of Cortex-M processors (MVE), by a microkernel.

VMLADAVA.S8 adds sixteen products to a general register, of which a tile needs eight; no compiler
keeps them there. So the intrinsic is a call (``targets/microkernels/mve.c``) for any number of
rows, columns in pairs, and the whole depth.
"""

from __future__ import annotations

from functools import cache

from ibert_tvm.targets import DotInstruction

from .registration import Sources, register, sources_of

_PRODUCT = """
@T.prim_func(s_tir=True)
def {which}(
    A: T.Buffer(({rows}, {depth}), "int8", offset_factor=1, strides=[T.int32(), 1]),
    B: T.Buffer(({columns} // {lanes}, {depth} // {step}, {lanes}, {step}), "int8",
                offset_factor=1, strides=[T.int32(), {lanes} * {step}, {step}, 1]),
    C: T.Buffer(({rows}, {columns}), "int32", offset_factor=1, strides=[T.int32(), 1]),
) -> None:
    with T.sblock("root"):
        T.reads(
            C[0:{rows}, 0:{columns}],
            A[0:{rows}, 0:{depth}],
            B[0:{columns} // {lanes}, 0:{depth} // {step}, 0:{lanes}, 0:{step}],
        )
        T.writes(C[0:{rows}, 0:{columns}])
        {body}
"""

_BY_LOOPS = """for i, j, k in T.grid({rows}, {columns}, {depth}):
            with T.sblock("update"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                C[vi, vj] = C[vi, vj] + T.cast(A[vi, vk], "int32") * T.cast(
                    B[vj // {lanes}, vk // {step}, vj % {lanes}, vk % {step}], "int32"
                )"""

# TVM drops loops of one iteration from what it compares.
_ROW_BY_LOOPS = """for j, k in T.grid({columns}, {depth}):
            with T.sblock("update"):
                vj, vk = T.axis.remap("SR", [j, k])
                C[0, vj] = C[0, vj] + T.cast(A[0, vk], "int32") * T.cast(
                    B[vj // {lanes}, vk // {step}, vj % {lanes}, vk % {step}], "int32"
                )"""

_BY_CALL = """T.evaluate(
            T.call_extern(
                "int32", "ibert_mk_{name}", T.address_of(A[0, 0]), T.address_of(B[0, 0, 0, 0]),
                T.address_of(C[0, 0]), {rows}, {columns}, {depth}, C.strides[0], A.strides[0],
                B.strides[0],
            )
        )"""

DEPTH_ARGUMENT = 6
"""Place in the call of what says over how many entries it multiplies."""

MICROKERNELS = ("vmladava",)
"""Names of the instructions that this file has an intrinsic of."""


def mve_product_sources(dot: DotInstruction, rows: int, columns: int, depth: int) -> Sources:
    """Text of the description and of the implementation of a product over a run of the depth.

    ``C[i, j] += sum_k A[i, k] B[j // lanes, k // step, j % lanes, k % step]``, with the lanes and
    the step of `dot`.

    Parameters
    ----------
    dot
        The instruction.
    rows, columns, depth
        Sizes; columns and depth are multiples of those of the instruction.
    """
    shape = {
        **{"rows": rows, "columns": columns, "depth": depth},
        **{"lanes": dot.lanes, "step": dot.depth, "name": dot.name},
    }
    loops = _BY_LOOPS if rows > 1 else _ROW_BY_LOOPS
    return sources_of(_PRODUCT, loops.format(**shape), _BY_CALL.format(**shape), **shape)


@cache
def mve_product_intrinsic(dot: DotInstruction, rows: int, columns: int, depth: int) -> str:
    """Register `mve_product_sources` with TVM once; return the intrinsic's name."""
    name = f"ibert.{dot.name}_{rows}x{columns}x{depth}"
    return register(name, mve_product_sources(dot, rows, columns, depth))
