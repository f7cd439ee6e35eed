"""Weights in half bytes, widened to what the dot-product instruction takes.

A block of columns of the packed weight is [depth blocks, lanes, depth], and its half bytes have
half as many depth blocks: of each group of 32 entries along the depth, those of the first half lie
in the lower halves of bytes. Two half bytes times a scale of at most 16 stay two bytes, so that one
product of 16 bits gives two entries; what is subtracted from both is 8 times the scale.
"""

from __future__ import annotations

from ibert_tvm.targets import DotInstruction

from .registration import Operand, Sources, called, nest, sources_of

GROUP, HALF = 32, 16
"""Entries of a group, and of half a group."""
_MOST_DEPTH = 8


def widens_by_intrinsic(dot: DotInstruction) -> bool:
    """Whether half bytes are widened by an intrinsic; by plain loops where they are not."""
    return dot.rhs_dtype == "int16" or 2 <= dot.depth <= _MOST_DEPTH


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
    by_halves = dot.rhs_dtype == "int16"
    operands = {
        "A": Operand((chunks // 2, lanes, step), "uint8"),
        "B": Operand((-(-groups // 2), lanes, 1), "uint8"),
        "C": Operand((chunks, lanes, 2, 2) if by_halves else (chunks, lanes, step), dot.rhs_dtype),
    }
    within = f"vq % {2 * half} // {half} * 4"
    byte = f'T.cast(A[vq // {2 * half} * {half} + vq % {half}, vj, vi], "int32")'
    scale = f'T.cast(B[vq // {4 * half}, vj, 0], "int32")'
    entry = (
        f"(T.bitwise_and(T.shift_right({byte}, {within}), 15) - 8)"
        f" * (T.bitwise_and(T.shift_right({scale}, vq % {4 * half} // {2 * half} * 4), 15) + 1)"
    )
    place = "vi % 2, vi // 2" if by_halves else "vi"
    loops = nest(
        f'C[vq, vj, {place}] = T.cast({entry}, "{dot.rhs_dtype}")', q=chunks, j=lanes, i=step
    )
    if by_halves:
        statements = [called("ibert_mk_nibbles", operands, groups)]
    else:
        statements = [
            f"for group in T.serial({groups}):",
            *(
                f"    C[group * {2 * half} + {upper * half + part}, 0, "
                f"T.ramp(T.int32(0), 1, {lanes * step})] = {_widened(lanes, step, upper, part)}"
                for upper in range(2)
                for part in range(half)
            ),
        ]
    name = f"nibbles_{dot.rhs_dtype}_{lanes}x{step}x{chunks}"
    return sources_of(name, operands, loops, statements, accumulates=False)


def _widened(lanes: int, step: int, upper: int, part: int) -> str:
    """A vector of entries: those of a block of the depth, from halves of bytes of one group."""
    size, half = lanes * step, HALF // step
    wide = f"uint{8 * step}x{lanes}"

    def every(number: int) -> str:
        return f'T.broadcast(T.cast({number}, "uint{8 * step}"), {lanes})'

    loaded = f'T.cast(B.vload([group // 2, 0, 0], dtype="uint8x{lanes}"), "{wide}")'
    shift = f'T.broadcast(T.cast(group % 2 * 4, "uint{8 * step}"), {lanes})'
    scale = f"(T.bitwise_and(T.shift_right({loaded}, {shift}), {every(15)}) + {every(1)})"
    by_word = f"{scale} * {every(int('0001' * (step // 2), 16))}"
    by_byte = f"{scale} * {every(int('08' * step, 16))}"
    words = f"uint16x{size // 2}"
    bytes_ = f'A.vload([group * {half} + {part}, 0, 0], dtype="uint8x{size}")'
    halves = f'T.reinterpret({bytes_}, dtype="{words}")'
    if upper:
        halves = f"T.shift_right({halves}, T.broadcast(T.uint16(4), {size // 2}))"
    halves = f"T.bitwise_and({halves}, T.broadcast(T.uint16(0x0F0F), {size // 2}))"
    product = f'{halves} * T.reinterpret({by_word}, dtype="{words}")'
    unsigned, less = (
        f'T.reinterpret({value}, dtype="uint8x{size}")' for value in (product, by_byte)
    )
    return f'T.reinterpret({unsigned} - {less}, dtype="int8x{size}")'
