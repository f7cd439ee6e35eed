"""Moving constants to registers without the floating-point unit.

From compute capability 8.0 on, ptxas writes some moves of a constant as a multiply-add of 16-bit
floats, ``HFMA2.MMA R5, -RZ, RZ, 0, 2.38e-07`` (-0 * 0 + constant, which is the constant, bit by
bit), because that unit has nothing else to do. No option of ptxas turns it off. Here such an
instruction becomes what ptxas writes elsewhere, ``IMAD.MOV.U32 R5, RZ, RZ, 0x4``, so that none is
left that a floating-point unit executes.

An instruction is 128 bits: the opcode in bits 0 to 11, its predicate in 12 to 15, the result's
register in 16 to 23, operands up to bit 71, modifiers up to 104, and from bit 105 on how it is
issued, of which the lower four bits are the cycles until the warp's next instruction. Both
instructions have the same operands in the same places; opcode and modifiers change. What is done to
the way they are issued can only make code slower, and keeps to what ptxas itself keeps to:

- the result is there no later: in ptxas' own code results of ``IMAD`` are used 4 or 5 cycles after
  it, of ``HFMA2.MMA`` 10, and of the ``HFMA2`` of 10.0 and later 5. The following instruction waits
  two cycles longer than it did, so that there is margin;
- two instructions for one unit are 2 cycles apart at least: the preceding one waits for 2.

Waiting for memory, predicates, branches and cached operands are as they were. The result is
disassembled again by whoever audits it.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable

from ..elf import opened
from .sass import Instruction

_BYTES = 16
_CONSTANT_MOVE = re.compile(r"R\d+, -RZ, RZ, [^,R]+, [^,R]+")
# HFMA2.MMA (8.0 to 9.0) and HFMA2 (10.0 and later), third factor immediate; RZ is register 255.
_OPCODES = (0x435, 0x431)
_OPCODE_MASK = 0xFFF
_FIRST_FACTOR, _ZERO_REGISTER = 24, 0xFF
# Bits 64 to 104: the second factor RZ, and the sign of the first.
_MODIFIERS_MASK = (1 << 41) - 1
_MODIFIERS = 0x1FF
# Of 16-bit floats, in bits 32 to 63 of an instruction: above infinity nothing is a number.
_HALF, _MAGNITUDE, _INFINITY = 0xFFFF, 0x7FFF, 0x7C00
# IMAD.MOV.U32 with an immediate: its opcode, and bits 64 to 104.
_MOVE, _MOVE_MODIFIERS = 0x424, 0x078E00FF
# From bit 105, which is 41 of the upper half.
_ISSUE = 41
_CYCLES_MASK = 0xF
_APART, _MARGIN = 2, 2
_LONGEST = 11  # ptxas writes longer waits in few places, and differently


def is_constant_move(instruction: Instruction) -> bool:
    """Whether an instruction moves a constant by the unit for floats of 16 bits.

    Parameters
    ----------
    instruction
        Any.
    """
    return (
        instruction.mnemonic in ("HFMA2.MMA", "HFMA2")
        and _CONSTANT_MOVE.fullmatch(instruction.operands) is not None
    )


def move_constants(
    image: bytes, functions: Iterable[tuple[str, list[Instruction]]]
) -> tuple[bytes, int]:
    """Write moves of constants anew as what they are.

    Parameters
    ----------
    image
        A cubin.
    functions
        Its functions, as `ibert_tvm.targets.cuda.sass.functions` gives them.

    Returns
    -------
    image, count
        The cubin, and how many instructions were written anew. One that is encoded in another way
        than is known here stays as it is, for the audit to find.
    """
    with opened(image) as elf:
        offsets = {
            section.name.removeprefix(".text."): int(section["sh_offset"])
            for section in elf.iter_sections()
            if section.name.startswith(".text.")
        }
    changed = bytearray(image)
    count = 0
    for name, instructions in functions:
        for instruction in instructions:
            if is_constant_move(instruction):
                place = offsets[name] + instruction.offset
                count += _write_anew(changed, place, instruction.offset > 0)
    return bytes(changed), count


def _write_anew(code: bytearray, place: int, has_predecessor: bool) -> bool:
    low, high = struct.unpack_from("<QQ", code, place)
    # -0 * 0 + c is c, bit by bit, of every number c, but not of what is none.
    halves = (low >> 32 & _HALF, low >> 48 & _HALF)
    if any(half & _MAGNITUDE > _INFINITY for half in halves):
        return False
    known = (
        low & _OPCODE_MASK in _OPCODES
        and low >> _FIRST_FACTOR & 0xFF == _ZERO_REGISTER
        and high & _MODIFIERS_MASK == _MODIFIERS
    )
    if not known:
        return False
    issue = high >> _ISSUE
    issue = _waiting(issue, (issue & _CYCLES_MASK) + _MARGIN)
    low = low & ~_OPCODE_MASK | _MOVE
    struct.pack_into("<QQ", code, place, low, issue << _ISSUE | _MOVE_MODIFIERS)
    if has_predecessor:
        low, high = struct.unpack_from("<QQ", code, place - _BYTES)
        issue = _waiting(high >> _ISSUE, _APART)
        high = issue << _ISSUE | high & _MODIFIERS_MASK
        struct.pack_into("<QQ", code, place - _BYTES, low, high)
    return True


def _waiting(issue: int, cycles: int) -> int:
    """How an instruction is issued, with so many cycles at least until the next."""
    return issue & ~_CYCLES_MASK | max(issue & _CYCLES_MASK, min(cycles, _LONGEST))
