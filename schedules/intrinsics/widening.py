"""Weights in half bytes, widened by a microkernel to what the dot-product instruction takes.

A block of columns of the packed weight is [depth blocks, lanes, depth], and its half bytes have
half as many depth blocks: of each group of 32 entries along the depth, those of the first half lie
in the lower halves of bytes.
"""

from __future__ import annotations

from ibert_tvm.targets import DotInstruction

from .registration import Operand, Sources, called, nest, sources_of

GROUP, HALF = 32, 16
"""Entries of a group, and of half a group."""


def widens_by_intrinsic(dot: DotInstruction) -> bool:
    """Whether a microkernel widens half bytes; by plain loops where there is none."""
    return dot.rhs_dtype == "int16"


def nibble_sources(dot: DotInstruction, chunks: int) -> Sources:
    """Text of the description and of the implementation of widening a block of columns.

    ``C[q, j, i] = (half byte - 8) * scale``: of `ibert_tvm.relay_passes.spec.nibbles`, packed.

    Parameters
    ----------
    dot
        The instruction, for which `widens_by_intrinsic` holds.
    chunks
        Blocks of the depth, of whole groups.
    """
    lanes, step = dot.lanes, dot.depth
    half, groups = HALF // step, chunks * step // GROUP
    operands = {
        "A": Operand((chunks // 2, lanes, step), "uint8"),
        "B": Operand((-(-groups // 2), lanes, 1), "uint8"),
        "C": Operand((chunks, lanes, 2, 2), dot.rhs_dtype),
    }
    within = f"vq % {2 * half} // {half} * 4"
    byte = f'T.cast(A[vq // {2 * half} * {half} + vq % {half}, vj, vi], "int32")'
    scale = f'T.cast(B[vq // {4 * half}, vj, 0], "int32")'
    entry = (
        f"(T.bitwise_and(T.shift_right({byte}, {within}), 15) - 8)"
        f" * (T.bitwise_and(T.shift_right({scale}, vq % {4 * half} // {2 * half} * 4), 15) + 1)"
    )
    loops = nest(
        f'C[vq, vj, vi % 2, vi // 2] = T.cast({entry}, "{dot.rhs_dtype}")',
        q=chunks,
        j=lanes,
        i=step,
    )
    statements = [called("ibert_mk_nibbles", operands, groups)]
    name = f"nibbles_{dot.rhs_dtype}_{lanes}x{step}x{chunks}"
    return sources_of(name, operands, loops, statements, accumulates=False)
