"""What instructions on integers do with a warp's registers: those that addresses and loops need.

Numbers without sign are kept in 64 bits. An instruction that is not here makes what it writes
unknown.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from .lanes import LANES, Known, Lanes, Values, signed
from .sass import Instruction

__all__ = ["OPERATIONS"]


def _split(instruction: Instruction) -> tuple[list[str], list[str], list[str]]:
    """Leading predicates, the rest of the operands, and trailing predicates."""
    operands = list(instruction.operands)

    def is_predicate(text: str) -> bool:
        return re.fullmatch(r"!?U?P(\d|T)", text) is not None

    trailing: list[str] = []
    while operands and is_predicate(operands[-1]):
        trailing.insert(0, operands.pop())
    return [], operands, trailing


def _results(operands: list[str]) -> tuple[str, list[str], list[str]]:
    """Destination, predicates written besides, and sources."""
    first, rest = operands[0], operands[1:]
    written = []
    while rest and re.fullmatch(r"U?P(\d|T)", rest[0]):
        written.append(rest.pop(0))
    return first, written, rest


def _imad(warp: Lanes, instruction: Instruction, acting: Known) -> None:
    _, operands, trailing = _split(instruction)
    to, _written, (a, b, c) = _results(operands)
    wide = {"WIDE", "HI"} & instruction.modifiers
    (x, x_known), (y, y_known) = warp.word(a), warp.word(b)
    z, z_known = warp.pair(c) if wide else warp.word(c)
    if wide and "U32" not in instruction.modifiers:
        x, y = signed(x), signed(y)
    zero = (x_known & (x == 0)) | (y_known & (y == 0))
    known = (zero | (x_known & y_known)) & z_known
    # Products of 64 bits wrap in NumPy as they do there.
    with np.errstate(over="ignore"):
        product = np.where(zero, 0, x * y)
        total = product + z
    for text in trailing:
        if "X" in instruction.modifiers:
            carry, carry_known = warp.predicate(text)
            total, known = total + carry, known & carry_known
    if "WIDE" in instruction.modifiers:
        warp.put_pair(to, total, known, acting)
    else:
        warp.put(to, total >> 32 if "HI" in instruction.modifiers else total, known, acting)


def _iadd3(warp: Lanes, instruction: Instruction, acting: Known) -> None:
    _, operands, trailing = _split(instruction)
    to, written, sources = _results(operands)
    total, known = np.zeros(LANES, np.int64), np.ones(LANES, bool)
    for text in sources:
        values, sure = warp.word(text)
        total, known = total + values, known & sure
    if "X" in instruction.modifiers:
        for text in trailing:
            if text.lstrip("!").endswith("PT"):
                continue
            carry, sure = warp.predicate(text)
            total, known = total + carry, known & sure
    for text in written:
        warp.put_predicate(text, total >> 32 > 0, known, acting)
    warp.put(to, total, known, acting)


def _mov(warp: Lanes, instruction: Instruction, acting: Known) -> None:
    warp.put(instruction.operands[0], *warp.word(instruction.operands[1]), acting)


def _lop3(warp: Lanes, instruction: Instruction, acting: Known) -> None:
    _, operands, _trailing = _split(instruction)
    written = []
    while re.fullmatch(r"U?P(\d|T)", operands[0]):
        written.append(operands.pop(0))
    to, a, b, c, table_text = operands
    words = [warp.word(text) for text in (a, b, c)]
    table = int(table_text, 16)
    result = np.zeros(LANES, np.int64)
    for row in range(8):
        if table >> row & 1:
            part = np.full(LANES, 0xFFFFFFFF)
            for bit, (values, _) in zip((4, 2, 1), words, strict=True):
                part &= values if row & bit else ~values
            result |= part
    known = words[0][1] & words[1][1] & words[2][1]
    for text in written:
        warp.put_predicate(text, result & 0xFFFFFFFF != 0, known, acting)
    warp.put(to, result, known, acting)


def _shf(warp: Lanes, instruction: Instruction, acting: Known) -> None:
    to, low_text, count_text, high_text = instruction.operands
    (low, low_known), (count, count_known) = warp.word(low_text), warp.word(count_text)
    high, high_known = warp.word(high_text)
    modifiers = instruction.modifiers
    count = count & (63 if {"U64", "S64"} & modifiers else 31)
    if {"U64", "S64"} & modifiers:
        known = low_known & high_known & count_known
        whole = (high & 0x7FFFFFFF) << 32 | low
        moved = whole >> count if "R" in modifiers else whole << count
        warp.put(to, moved >> 32 if "HI" in modifiers else moved, known, acting)
        return
    if "R" in modifiers and "HI" in modifiers:
        source = signed(high) if "S32" in modifiers else high
        warp.put(to, source >> count, high_known & count_known, acting)
        return
    moved = low << count if "L" in modifiers else low >> count
    warp.put(to, moved, low_known & count_known, acting)


def _lea(warp: Lanes, instruction: Instruction, acting: Known) -> None:
    _, operands, trailing = _split(instruction)
    to, written, sources = _results(operands)
    modifiers = instruction.modifiers
    a, b, *rest = sources
    shift = int(rest[-1], 16)
    (x, x_known), (y, y_known) = warp.word(a), warp.word(b)
    known = x_known & y_known
    if "HI" not in modifiers:
        total = (x << shift & 0xFFFFFFFF) + y
        for text in written:
            warp.put_predicate(text, total >> 32 > 0, known, acting)
    elif "SX32" in modifiers:
        total = (signed(x) >> (32 - shift)) + y
    else:
        high, high_known = warp.word(rest[0])
        total, known = (high << shift | x >> (32 - shift)) + y, known & high_known
    if "X" in modifiers:
        for text in trailing:
            carry, sure = warp.predicate(text)
            total, known = total + carry, known & sure
    warp.put(to, total, known, acting)


_COMPARE: dict[str, Callable[[Values, Values], Known]] = {
    "EQ": lambda a, b: a == b,
    "NE": lambda a, b: a != b,
    "LT": lambda a, b: a < b,
    "LE": lambda a, b: a <= b,
    "GT": lambda a, b: a > b,
    "GE": lambda a, b: a >= b,
}


def _isetp(warp: Lanes, instruction: Instruction, acting: Known) -> None:
    first, second, a, b, *others = instruction.operands
    kind = instruction.name.split(".")[1]
    (x, x_known), (y, y_known) = warp.word(a), warp.word(b)
    if "U32" not in instruction.modifiers:
        x, y = signed(x), signed(y)
    found, known = _COMPARE[kind](x, y), x_known & y_known
    if "EX" in instruction.modifiers:
        lower, lower_known = warp.predicate(others[1])
        if kind in ("EQ", "NE"):
            found = found & lower if kind == "EQ" else found | lower
        else:
            found = np.where(x == y, lower, found)
        known = known & lower_known
    other, other_known = warp.predicate(others[0])
    if "OR" in instruction.modifiers:
        sure = (known & found) | (other_known & other) | (known & other_known)
        result = (found & known) | (other & other_known)
    elif "XOR" in instruction.modifiers:
        sure, result = known & other_known, found ^ other
    else:
        sure = (known & ~found) | (other_known & ~other) | (known & other_known)
        result = found & other
    warp.put_predicate(first, result, sure, acting)
    warp.put_predicate(second, ~found & other, known & other_known, acting)


def _plop3(warp: Lanes, instruction: Instruction, acting: Known) -> None:
    first, second, a, b, c, *tables = instruction.operands
    inputs = [warp.predicate(text) for text in (a, b, c)]
    known = inputs[0][1] & inputs[1][1] & inputs[2][1]
    for to, text in zip((first, second), tables, strict=False):
        result = np.zeros(LANES, bool)
        for row in range(8):
            if int(text, 16) >> row & 1:
                part = np.ones(LANES, bool)
                for bit, (values, _) in zip((4, 2, 1), inputs, strict=True):
                    part &= values if row & bit else ~values
                result |= part
        warp.put_predicate(to, result, known, acting)


def _sel(warp: Lanes, instruction: Instruction, acting: Known) -> None:
    to, a, b, predicate = instruction.operands
    (x, x_known), (y, y_known) = warp.word(a), warp.word(b)
    chosen, known = warp.predicate(predicate)
    warp.put(to, np.where(chosen, x, y), np.where(chosen, x_known, y_known) & known, acting)


def _imnmx(warp: Lanes, instruction: Instruction, acting: Known) -> None:
    to, a, b, predicate = instruction.operands
    (x, x_known), (y, y_known) = warp.word(a), warp.word(b)
    if "U32" not in instruction.modifiers:
        x, y = signed(x), signed(y)
    least, known = warp.predicate(predicate)
    result = np.where(least, np.minimum(x, y), np.maximum(x, y))
    warp.put(to, result, x_known & y_known & known, acting)


def _iabs(warp: Lanes, instruction: Instruction, acting: Known) -> None:
    values, known = warp.word(instruction.operands[1])
    warp.put(instruction.operands[0], np.abs(signed(values)), known, acting)


def _prmt(warp: Lanes, instruction: Instruction, acting: Known) -> None:
    to, a, selector_text, b = instruction.operands
    (x, x_known), (y, y_known) = warp.word(a), warp.word(b)
    selector, known = warp.word(selector_text)
    whole = [x >> 8 * i & 255 for i in range(4)] + [y >> 8 * i & 255 for i in range(4)]
    result = np.zeros(LANES, np.int64)
    for place in range(4):
        nibble = selector >> 4 * place & 15
        byte = np.choose(nibble & 7, whole)
        result |= np.where(nibble & 8, np.where(byte & 128, 255, 0), byte) << 8 * place
    warp.put(to, result, x_known & y_known & known, acting)


def _special(warp: Lanes, instruction: Instruction, acting: Known) -> None:
    to, source = instruction.operands
    values = warp.special.get(source)
    known = np.full(LANES, values is not None)
    warp.put(to, np.zeros(LANES, np.int64) if values is None else values, known, acting)


def _zero_pair(warp: Lanes, instruction: Instruction, acting: Known) -> None:
    known = np.full(LANES, instruction.operands[1] == "SRZ")
    zero = np.zeros(LANES, np.int64)
    if "32" in instruction.modifiers:
        warp.put(instruction.operands[0], zero, known, acting)
    else:
        warp.put_pair(instruction.operands[0], zero, known, acting)


def _uldc(warp: Lanes, instruction: Instruction, acting: Known) -> None:
    to, source = instruction.operands
    if "64" in instruction.modifiers:
        warp.put_pair(to, *warp.pair(source), acting)
    else:
        warp.put(to, *warp.word(source), acting)


OPERATIONS: dict[str, Callable[[Lanes, Instruction, Known], None]] = {
    **{"IMAD": _imad, "UIMAD": _imad, "IADD3": _iadd3, "UIADD3": _iadd3},
    **{"MOV": _mov, "UMOV": _mov, "R2UR": _mov, "LOP3": _lop3, "ULOP3": _lop3},
    **{"SHF": _shf, "USHF": _shf, "LEA": _lea, "ULEA": _lea, "ISETP": _isetp, "UISETP": _isetp},
    **{"PLOP3": _plop3, "UPLOP3": _plop3, "SEL": _sel, "USEL": _sel, "IMNMX": _imnmx},
    **{"IABS": _iabs, "PRMT": _prmt, "UPRMT": _prmt, "S2R": _special, "S2UR": _special},
    **{"CS2R": _zero_pair, "ULDC": _uldc},
}
