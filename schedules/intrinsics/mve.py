"""Matrix products with the integer vectors of Cortex-M processors (MVE), by a microkernel.

VMLADAVA.S8 adds sixteen products to a general register, of which a tile needs eight; no compiler
keeps them there. So the intrinsic is a call (``targets/microkernels/mve.c``) for any number of
rows, columns in pairs, and the whole depth.
"""

from __future__ import annotations

from ibert_tvm.targets import DotInstruction

from .registration import ANY_ROWS, Operand, Sources, called, nest, sources_of

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
    lanes, step = dot.lanes, dot.depth
    operands = {
        "A": Operand((rows, depth), "int8", ANY_ROWS),
        "B": Operand(
            (columns // lanes, depth // step, lanes, step),
            "int8",
            f"[T.int32(), {lanes} * {step}, {step}, 1]",
        ),
        "C": Operand((rows, columns), "int32", ANY_ROWS),
    }
    weight = f"B[vj // {lanes}, vk // {step}, vj % {lanes}, vk % {step}]"
    product = f'T.cast(A[vi, vk], "int32") * T.cast({weight}, "int32")'
    loops = nest(f"C[vi, vj] = C[vi, vj] + {product}", i=rows, j=columns, k=depth)
    strides = (f"{name}.strides[0]" for name in "CAB")
    call = called(f"ibert_mk_{dot.name}", operands, rows, columns, depth, *strides)
    return sources_of(f"{dot.name}_{rows}x{columns}x{depth}", operands, loops, [call])
