"""Instructions that multiply matrices: pairs of rows of activations by pairs of columns.

Their accumulators hold two columns of two rows, ``C[n // 2, m % 2, n % 2]``, and stay so as long as
products are added up; a second intrinsic, the drain, brings them into rows. Activations lie as the
instruction takes them, the two rows side by side.
"""

from __future__ import annotations

from ibert_tvm.targets import DotInstruction

from .registration import ANY_ROWS, Operand, Sources, nest, sources_of


def _accumulators(dot: DotInstruction) -> Operand:
    return Operand((dot.lanes // dot.rows, dot.rows, dot.rows), "int32")


def matrix_sources(dot: DotInstruction, body: list[str]) -> Sources:
    """Text of the description and of the implementation of a matrix product.

    ``C[j // 2, i, j % 2] += sum_k A[i, k] B[j, k]`` for two rows i and ``dot.lanes`` columns j.

    Parameters
    ----------
    dot
        The instruction.
    body
        Statements of the implementation.
    """
    operands = {
        "A": Operand((dot.rows, dot.depth), dot.lhs_dtype),
        "B": Operand((dot.lanes, dot.depth), dot.rhs_dtype),
        "C": _accumulators(dot),
    }
    entry = f"C[vj // {dot.rows}, vi, vj % {dot.rows}]"
    product = 'T.cast(A[vi, vk], "int32") * T.cast(B[vj, vk], "int32")'
    loops = nest(f"{entry} = {entry} + {product}", i=dot.rows, j=dot.lanes, k=dot.depth)
    return sources_of(dot.name, operands, loops, body)


def drain_sources(dot: DotInstruction) -> Sources:
    """Text of the description and of the implementation of the drain.

    ``C[i, j] = A[j // 2, i, j % 2]``.
    """
    operands = {"A": _accumulators(dot), "C": Operand((dot.rows, dot.lanes), "int32", ANY_ROWS)}
    loops = nest(f"C[vi, vj] = A[vj // {dot.rows}, vi, vj % {dot.rows}]", i=dot.rows, j=dot.lanes)
    pairs, block = range(dot.lanes // dot.rows), dot.rows**2
    vectors = ", ".join(f'A.vload([{pair}, 0, 0], dtype="int32x{block}")' for pair in pairs)
    stores = []
    for row in range(dot.rows):
        # Of every vector the columns of this row.
        order = [
            pair * block + row * dot.rows + column for pair in pairs for column in range(dot.rows)
        ]
        stores.append(f"C.vstore([{row}, 0], T.Shuffle([{vectors}], {order}))")
    return sources_of(f"{dot.name}_drain", operands, loops, stores, accumulates=False)
