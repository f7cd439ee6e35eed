"""Instructions that multiply matrices: pairs of rows of activations by pairs of columns.

Their accumulators hold two columns of two rows, ``C[n // 2, m % 2, n % 2]``, and stay so as long as
products are added up; a second intrinsic, the drain, brings them into rows. Activations lie as the
instruction takes them, the two rows side by side.
"""

from __future__ import annotations

from functools import cache

from ibert_tvm.targets import DotInstruction

from .registration import Sources, register, sources_of

_PRODUCT = """
@T.prim_func(s_tir=True)
def {which}(
    A: T.Buffer(({rows}, {depth}), "{lhs}", offset_factor=1),
    B: T.Buffer(({lanes}, {depth}), "{rhs}", offset_factor=1),
    C: T.Buffer(({pairs}, {rows}, {rows}), "int32", offset_factor=1),
) -> None:
    with T.sblock("root"):
        T.reads(
            C[0:{pairs}, 0:{rows}, 0:{rows}],
            A[0:{rows}, 0:{depth}],
            B[0:{lanes}, 0:{depth}],
        )
        T.writes(C[0:{pairs}, 0:{rows}, 0:{rows}])
        {body}
"""

_MULTIPLIED_BY_LOOPS = """for i, j, k in T.grid({rows}, {lanes}, {depth}):
            with T.sblock("update"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                C[vj // {rows}, vi, vj % {rows}] = C[vj // {rows}, vi, vj % {rows}] + T.cast(
                    A[vi, vk], "int32"
                ) * T.cast(B[vj, vk], "int32")"""

_DRAIN = """
@T.prim_func(s_tir=True)
def {which}(
    A: T.Buffer(({pairs}, {rows}, {rows}), "int32", offset_factor=1),
    C: T.Buffer(({rows}, {lanes}), "int32", offset_factor=1, strides=[T.int32(), 1]),
) -> None:
    with T.sblock("root"):
        T.reads(A[0:{pairs}, 0:{rows}, 0:{rows}])
        T.writes(C[0:{rows}, 0:{lanes}])
        {body}
"""

_DRAINED_BY_LOOPS = """for i, j in T.grid({rows}, {lanes}):
            with T.sblock("update"):
                vi, vj = T.axis.remap("SS", [i, j])
                C[vi, vj] = A[vj // {rows}, vi, vj % {rows}]"""


def _shape(dot: DotInstruction) -> dict[str, int]:
    return {"rows": dot.rows, "lanes": dot.lanes, "pairs": dot.lanes // dot.rows}


def matrix_sources(dot: DotInstruction, body: str) -> Sources:
    """Text of the description and of the implementation of a matrix product.

    ``C[j // 2, i, j % 2] += sum_k A[i, k] B[j, k]`` for two rows i and ``dot.lanes`` columns j.

    Parameters
    ----------
    dot
        The instruction.
    body
        Statements of the implementation.
    """
    shape = {**_shape(dot), "depth": dot.depth}
    operands = {"lhs": dot.lhs_dtype, "rhs": dot.rhs_dtype}
    loops = _MULTIPLIED_BY_LOOPS.format(**shape)
    return sources_of(_PRODUCT, loops, body, **shape, **operands)


def drain_sources(dot: DotInstruction) -> Sources:
    """Text of the description and of the implementation of the drain.

    ``C[i, j] = A[j // 2, i, j % 2]``.
    """
    shape = _shape(dot)
    loops = _DRAINED_BY_LOOPS.format(**shape)
    vectors = ", ".join(
        f'A.vload([{pair}, 0, 0], dtype="int32x{dot.rows**2}")' for pair in range(shape["pairs"])
    )
    block = dot.rows**2
    stores = []
    for row in range(dot.rows):
        # Of every vector the columns of this row.
        order = [
            pair * block + row * dot.rows + column
            for pair in range(shape["pairs"])
            for column in range(dot.rows)
        ]
        stores.append(f"C.vstore([{row}, 0], T.Shuffle([{vectors}], {order}))")
    return sources_of(_DRAIN, loops, "\n        ".join(stores), **shape)


@cache
def drain_intrinsic(dot: DotInstruction) -> str:
    """Register `drain_sources` with TVM once; return the intrinsic's name."""
    return register(f"ibert.{dot.name}_drain", drain_sources(dot))
