"""Weights in half bytes, widened to what the dot-product instruction takes.

A block of columns of the packed weight is [depth blocks, lanes, depth], and its half bytes have
half as many depth blocks: of each group of 32 entries along the depth, those of the first half lie
in the lower halves of bytes. Two half bytes times a scale of at most 16 stay two bytes, so that one
product of 16 bits gives two entries; what is subtracted from both is 8 times the scale.
"""

from __future__ import annotations

from functools import cache

from tvm import tirx

from ibert_tvm.targets import DotInstruction

from .microkernels import is_microkernel
from .registration import Operand, Sources, called, nest, sources_of

GROUP, HALF = 32, 16
"""Entries of a group, and of half a group."""


_MOST_WORDS = 4
"""Of 16 bits, that the largest number has."""
_VECTOR = 32
"""Bytes that are widened at a time, at least."""


def widens_by_intrinsic(dot: DotInstruction) -> bool:
    """Whether half bytes are widened by an intrinsic; by plain loops where they are not."""
    return dot.rhs_dtype == "int16" or 1 < dot.depth <= HALF


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
    groups = chunks * step // GROUP
    by_halves = is_microkernel(dot)
    operands, loops = _described(lanes, step, chunks, dot.rhs_dtype, by_halves)
    if by_halves:
        statements = [called("ibert_mk_nibbles", operands, groups)]
    else:
        statements = [f"for group in T.serial({groups}):", *_vectors(dot)]
    name = f"nibbles_{dot.rhs_dtype}_{lanes}x{step}x{chunks}"
    return sources_of(name, operands, loops, statements, accumulates=False)


@cache
def described(lanes: int, step: int, chunks: int, dtype: str) -> tirx.PrimFunc:
    """The description alone, for kernels that other code widens half bytes in.

    Parameters
    ----------
    lanes, step
        Columns of a block, and entries of each in a block of the depth.
    chunks
        Blocks of the depth, of whole groups.
    dtype
        What half bytes are widened to.
    """
    from tvm.script import from_source

    operands, loops = _described(lanes, step, chunks, dtype, False)
    return from_source(sources_of("", operands, loops, [], accumulates=False).description)


def _described(
    lanes: int, step: int, chunks: int, dtype: str, by_halves: bool
) -> tuple[dict[str, Operand], str]:
    """Operands, and the loops over them."""
    half, groups = HALF // step, chunks * step // GROUP
    operands = {
        "A": Operand((chunks // 2, lanes, step), "uint8"),
        "B": Operand((-(-groups // 2), lanes, 1), "uint8"),
        "C": Operand((chunks, lanes, 2, 2) if by_halves else (chunks, lanes, step), dtype),
    }
    within = f"vq % {2 * half} // {half} * 4"
    byte = f'T.cast(A[vq // {2 * half} * {half} + vq % {half}, vj, vi], "int32")'
    scale = f'T.cast(B[vq // {4 * half}, vj, 0], "int32")'
    entry = (
        f"(T.bitwise_and(T.shift_right({byte}, {within}), 15) - 8)"
        f" * (T.bitwise_and(T.shift_right({scale}, vq % {4 * half} // {2 * half} * 4), 15) + 1)"
    )
    place = "vi % 2, vi // 2" if by_halves else "vi"
    return operands, nest(
        f'C[vq, vj, {place}] = T.cast({entry}, "{dtype}")', q=chunks, j=lanes, i=step
    )


def _vectors(dot: DotInstruction) -> list[str]:
    """Statements that widen a group, as many bytes at a time as a vector has."""
    step, half = dot.depth, HALF // dot.depth
    words = step // 2
    # A lane's words are one number, whose product with its scale fills them; a number has 64 bits.
    by_lane = words > _MOST_WORDS
    size = step if by_lane else dot.lanes * step
    blocks = 1 if by_lane else min(half, max(1, _VECTOR // size))
    indent, lane = (" " * 8, "lane") if by_lane else (" " * 4, "0")
    bits, lanes = (16, 1) if by_lane else (16 * words, dot.lanes)

    def every(number: int, bits: int, count: int) -> str:
        constant = f'T.cast({number}, "uint{bits}")'
        return constant if count == 1 else f"T.broadcast({constant}, {count})"

    dtype = f"uint{bits}" + (f"x{lanes}" if lanes > 1 else "")
    loaded = f'T.cast(B.vload([group // 2, {lane}, 0], dtype="uint8x{lanes}"), "{dtype}")'
    if by_lane:
        loaded = 'T.cast(B[group // 2, lane, 0], "uint16")'
    shift = f'T.cast(group % 2 * 4, "uint{bits}")'
    shift = f"T.broadcast({shift}, {lanes})" if lanes > 1 else shift
    scale = f"T.bitwise_and(T.shift_right({loaded}, {shift}), {every(15, bits, lanes)})"
    scale = f"({scale} + {every(1, bits, lanes)})"
    if by_lane:
        scale = f"T.broadcast({scale}, {words})"
    else:
        scale = f"{scale} * {every(int('0001' * words, 16), bits, lanes)}"
        scale = f'T.reinterpret({scale}, dtype="uint16x{lanes * words}")'
        if blocks > 1:
            repeated = ", ".join([scale] * blocks)
            scale = f"T.Shuffle([{repeated}], {[*range(lanes * words * blocks)]})"
    many = blocks * size
    statements = []
    for upper in range(2):
        for part in range(0, half, blocks):
            halves = f'A.vload([group * {half} + {part}, {lane}, 0], dtype="uint8x{many}")'
            halves = f'T.reinterpret({halves}, dtype="uint16x{many // 2}")'
            if upper:
                halves = f"T.shift_right({halves}, {every(4, 16, many // 2)})"
            halves = f"T.bitwise_and({halves}, {every(0x0F0F, 16, many // 2)})"
            # Products of words, but differences of bytes, whose signs are their own.
            value, less = (
                f'T.reinterpret({words}, dtype="uint8x{many}")'
                for words in (f"{halves} * {scale}", f"{scale} * {every(0x0808, 16, many // 2)}")
            )
            place = f"group * {2 * half} + {upper * half + part}, {lane}"
            value = f'T.reinterpret({value} - {less}, dtype="int8x{many}")'
            statements.append(f"{indent}C[{place}, T.ramp(T.int32(0), 1, {many})] = {value}")
    return [f"    for lane in T.serial({dot.lanes}):", *statements] if by_lane else statements
