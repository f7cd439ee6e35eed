"""Matrix products of whole tiles by one call of a microkernel.

The intrinsic is a call of a function in C (``targets/microkernels``) for any number of rows and
columns and a run of the depth, where a compiler does not keep what the instruction accumulates in:
VMLADAVA (Cortex-M55, MVE) adds sixteen products to a general register, TDPBUSD (x86, AMX) a matrix
of 16 x 16 sums to a tile, VWMACC (RISC-V) products to a group of vectors of any length.
"""

from __future__ import annotations

from ibert_tvm.targets import DotInstruction

from .registration import ANY_ROWS, Operand, Sources, called, nest, sources_of

ROWS_ARGUMENT, DEPTH_ARGUMENT = 4, 6
"""Places in the call of what says how many rows it multiplies, and over how many entries."""

_MICROKERNELS = ("vmladava", "tdpbusd", "vwmacc", "vwmacc_short")


def multiplies_whole_tiles(dot: DotInstruction) -> bool:
    """Whether matrix products of an instruction are calls of this kind."""
    return dot.name in _MICROKERNELS


def whole_tile_sources(
    dot: DotInstruction, rows: int, columns: int, depth: int, *, adds: bool = True
) -> Sources:
    """Text of the description and of the implementation of a product over a run of the depth.

    ``C[i, j] += sum_k A[i, k] B[j // lanes, k // step, j % lanes, k % step]``, with the lanes and
    the step of `dot`.

    Parameters
    ----------
    dot
        The instruction.
    rows, columns, depth
        Sizes; columns and depth are multiples of those of the instruction.
    adds
        False for the whole depth, where the function stores sums instead. TVM keeps the zeros of
        such a block outside of the description, until `without_zeros`.
    """
    lanes, step = dot.lanes, dot.depth
    operands = {
        "A": Operand((rows, depth), dot.lhs_dtype, ANY_ROWS),
        "B": Operand(
            (columns // lanes, depth // step, lanes, step),
            dot.rhs_dtype,
            f"[T.int32(), {lanes} * {step}, {step}, 1]",
        ),
        "C": Operand((rows, columns), "int32", ANY_ROWS),
    }
    weight = f"B[vj // {lanes}, vk // {step}, vj % {lanes}, vk % {step}]"
    product = f'T.cast(A[vi, vk], "int32") * T.cast({weight}, "int32")'
    loops = nest(f"C[vi, vj] = C[vi, vj] + {product}", i=rows, j=columns, k=depth)
    strides = (f"{name}.strides[0]" for name in "CAB")
    name = dot.name + ("" if adds else "_set")
    call = called(f"ibert_mk_{name}", operands, rows, columns, depth, *strides)
    return sources_of(f"{name}_{rows}x{columns}x{depth}", operands, loops, [call], accumulates=adds)
