"""Following a warp through machine code: what it executes, and which memory it touches.

Shapes are constants in our kernels, so that nearly all control flow follows from constants and the
numbers of thread and block. Registers of the 32 lanes therefore hold numbers where these are known,
and nothing where they come from memory. Lanes that part are followed by their own program counters,
the lowest address first, which is where structured code meets again.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .errors import GpuBenchmarkError
from .sass import Instruction

__all__ = ["Executed", "Launch", "Trace", "follow_warp"]

_LANES = 32
_MOST_INSTRUCTIONS = 400_000
# Parameters of a kernel start here in constant bank 0 (compute capability 7.5).
_PARAMETERS = 0x160
_MEMORY = frozenset({"LDG", "STG", "LDS", "STS", "LDSM", "LDL", "STL", "RED", "ATOMG", "ATOMS"})
_SILENT = frozenset({"NOP", "BSSY", "BSYNC", "BMOV", "WARPSYNC", "YIELD", "BAR", "DEPBAR", "MEMBAR",
                     "ERRBAR", "CCTL", "BREAK"})  # fmt: skip
_ADDRESS = re.compile(
    r"^\[(?:(U?R(?:\d+|Z))(?:\.(?:X(\d+)|64|U32))*)?(?:\+?(UR\d+))?(?:\+?(-?0x[0-9a-f]+))?\]$"
)
_CONSTANT = re.compile(r"^(-|~)?c\[0x0\]\[(0x[0-9a-f]+)\]$")

Values = NDArray[np.int64]
Known = NDArray[np.bool_]
Word = tuple[Values, Known]


@dataclass(frozen=True)
class Launch:
    """Which warp of which block is followed, and of how large a launch.

    Attributes
    ----------
    blocks, threads : tuple of int
        The grid, and a block, along x, y and z.
    block : tuple of int
        Number of the block.
    warp : int
        Number of the warp in it.
    """

    blocks: tuple[int, int, int]
    threads: tuple[int, int, int]
    block: tuple[int, int, int] = (0, 0, 0)
    warp: int = 0


@dataclass(frozen=True)
class Executed:
    """One executed instruction.

    Attributes
    ----------
    index : int
        Which of the kernel's.
    transfers : int
        Of shared memory: passes of 128 bytes that it takes, conflicts included; of device memory:
        sectors of 32 bytes. 0 for others.
    sectors : tuple of int
        Numbers of those sectors, where their addresses are known.
    """

    index: int
    transfers: int = 0
    sectors: tuple[int, ...] = ()


@dataclass
class Trace:
    """What a warp did.

    Attributes
    ----------
    executed : list of Executed
        In order.
    undecided : set of int
        Addresses of branches whose outcome is not known; they were not taken.
    unknown_addresses : int
        Accesses to memory at addresses that are not known; they count as without conflicts.
    """

    executed: list[Executed] = field(default_factory=list)
    undecided: set[int] = field(default_factory=set)
    unknown_addresses: int = 0


def follow_warp(code: list[Instruction], launch: Launch) -> Trace:
    """Follow a warp to its end.

    Parameters
    ----------
    code : list of Instruction
        A kernel.
    launch : Launch
        Which warp.

    Returns
    -------
    Trace

    Raises
    ------
    GpuBenchmarkError
        If it does not end.
    """
    return _Warp(code, launch).run()


def _signed(values: Values) -> Values:
    return (values & 0xFFFFFFFF ^ 0x80000000) - 0x80000000


class _Warp:
    def __init__(self, code: list[Instruction], launch: Launch) -> None:
        self.code, self.launch = code, launch
        self.places = {instruction.address: i for i, instruction in enumerate(code)}
        self.registers = np.zeros((257, _LANES), np.int64)
        self.known = np.zeros((257, _LANES), bool)
        self.uniform: dict[int, int | None] = {}
        self.predicates = np.zeros((8, _LANES), bool)
        self.predicates_known = np.zeros((8, _LANES), bool)
        self.predicates[7] = self.predicates_known[7] = True
        self.uniform_predicates: dict[int, bool | None] = {7: True}
        self.trace = Trace()
        x, y, z = launch.threads
        number = launch.warp * _LANES + np.arange(_LANES)
        self.present = number < x * y * z
        self.special = {
            "SR_TID.X": number % x,
            "SR_TID.Y": number // x % y,
            "SR_TID.Z": number // (x * y),
            "SR_LANEID": np.arange(_LANES),
            **{
                f"SR_CTAID.{axis}": np.full(_LANES, value)
                for axis, value in zip("XYZ", launch.block, strict=True)
            },
        }

    # -- control flow -----------------------------------------------------------------------------

    def run(self) -> Trace:
        counters = np.where(self.present, 0, -1)
        while True:
            alive = counters >= 0
            if not alive.any():
                return self.trace
            if len(self.trace.executed) >= _MOST_INSTRUCTIONS:
                raise GpuBenchmarkError(
                    "a warp does not end",
                    where=f"block {self.launch.block}, warp {self.launch.warp}",
                    why=f"it has executed {_MOST_INSTRUCTIONS} instructions",
                    todo="see whether a loop depends on values that are not known",
                )
            index = int(counters[alive].min())
            active = counters == index
            instruction = self.code[index]
            decided, certain = self._guard(instruction)
            if instruction.operation in ("BRA", "EXIT"):
                self.trace.executed.append(Executed(index))
                taken = active & decided & certain
                if (active & ~certain).any():
                    self.trace.undecided.add(instruction.address)
                counters[active] = index + 1
                counters[taken] = (
                    -1 if instruction.operation == "EXIT" else self._place(instruction)
                )
                continue
            # What is not known to be left out is executed.
            acting = active & (decided | ~certain)
            self.trace.executed.append(Executed(index, *self._transfers(instruction, acting)))
            self._execute(instruction, acting, acting & ~certain)
            counters[active] = index + 1

    def _place(self, instruction: Instruction) -> int:
        if instruction.target not in self.places:
            raise GpuBenchmarkError(
                "a branch leads nowhere",
                where=f"address {instruction.address:#x}: {instruction.name}",
                why=f"its target is {' '.join(instruction.operands)}",
                todo="report this kernel: computed branches are not followed",
            )
        return self.places[instruction.target]

    def _guard(self, instruction: Instruction) -> tuple[Known, Known]:
        if not instruction.predicate:
            return np.ones(_LANES, bool), np.ones(_LANES, bool)
        return self._predicate(instruction.predicate)

    def _predicate(self, text: str) -> tuple[Known, Known]:
        negated, name = text.startswith("!"), text.removeprefix("!")
        if name.startswith("U"):
            value = self.uniform_predicates.get(7 if name == "UPT" else int(name[2:]))
            values, known = np.full(_LANES, bool(value)), np.full(_LANES, value is not None)
        else:
            number = 7 if name == "PT" else int(name[1:])
            values, known = self.predicates[number], self.predicates_known[number]
        return (~values if negated else values), known

    # -- operands ---------------------------------------------------------------------------------

    def _word(self, text: str) -> Word:
        """An operand of 32 bits: unsigned values, and which of them are known."""
        text = text.removesuffix(".reuse").removesuffix(".ROW").removesuffix(".COL")
        text = text.removesuffix(".reuse")
        every = np.ones(_LANES, bool)
        if text.startswith(("0x", "-0x")):
            return np.full(_LANES, int(text, 16) & 0xFFFFFFFF), every
        if constant := _CONSTANT.match(text):
            value = self._constant(int(constant[2], 16))
            return self._signed_word(np.full(_LANES, value), constant[1] or ""), every
        sign = text[0] if text[0] in "-~|" else ""
        name = text.strip("-~|").partition(".")[0]
        if name == "RZ" or name == "URZ":
            return self._signed_word(np.zeros(_LANES, np.int64), sign), every
        if name.startswith("UR"):
            value_or_none = self.uniform.get(int(name[2:]))
            values = np.full(_LANES, value_or_none or 0)
            return self._signed_word(values, sign), np.full(_LANES, value_or_none is not None)
        if not re.fullmatch(r"R\d+", name):
            return np.zeros(_LANES, np.int64), np.zeros(_LANES, bool)
        number = int(name[1:])
        return self._signed_word(self.registers[number], sign), self.known[number]

    @staticmethod
    def _signed_word(values: Values, sign: str) -> Values:
        if sign == "-":
            return -values & 0xFFFFFFFF
        if sign == "~":
            return ~values & 0xFFFFFFFF
        if sign == "|":
            return np.abs(_signed(values)) & 0xFFFFFFFF
        return values

    def _constant(self, offset: int) -> int:
        """Sizes of the launch, and for parameters addresses far from each other."""
        sizes = (*self.launch.threads, *self.launch.blocks)
        if offset < 4 * len(sizes):
            return sizes[offset // 4]
        if offset < _PARAMETERS:
            return 0
        number, high = divmod(offset - _PARAMETERS, 8)
        return 16 * (number + 1) if high else 0

    def _pair(self, text: str) -> Word:
        """An operand of 64 bits, of which only the lower 63 are kept."""
        low, known = self._word(text)
        base = text.removesuffix(".reuse").partition(".")[0]
        if constant := _CONSTANT.match(text):
            high, high_known = np.full(_LANES, self._constant(int(constant[2], 16) + 4)), known
        elif re.fullmatch(r"U?R\d+", base):
            kind, number = re.match(r"(U?R)(\d+)", base).groups()  # type: ignore[union-attr]
            high, high_known = self._word(f"{kind}{int(number) + 1}")
        else:
            high, high_known = np.zeros(_LANES, np.int64), np.ones(_LANES, bool)
        return (high & 0x7FFFFFFF) << 32 | low, known & high_known

    # -- memory -----------------------------------------------------------------------------------

    def _transfers(
        self, instruction: Instruction, acting: Known
    ) -> tuple[int] | tuple[int, tuple[int, ...]]:
        if instruction.operation not in _MEMORY or not acting.any():
            return (0,)
        text = next((part for part in instruction.operands if part.startswith("[")), "")
        width = _bytes(instruction)
        addresses, known = self._address(text)
        if not known[acting].all():
            self.trace.unknown_addresses += 1
            shared = instruction.operation in ("LDS", "STS", "LDSM", "ATOMS")
            return (max(1, width * _LANES // (128 if shared else 32)),)
        if instruction.operation == "LDSM":
            # Eight rows of 16 bytes per matrix; lane l gives the row l % 8 of matrix l / 8.
            matrices = int(instruction.name[-1])
            rows = np.ones(8, bool)
            passes = (_passes(addresses[8 * m : 8 * m + 8], 16, rows) for m in range(matrices))
            return (sum(passes),)
        if instruction.operation in ("LDS", "STS", "ATOMS"):
            # Lanes are served in groups that can fill a pass: 32, 16 or 8.
            group = min(_LANES, 128 // width)
            passes = (
                _passes(addresses[g : g + group], width, acting[g : g + group])
                for g in range(0, _LANES, group)
            )
            return (sum(passes),)
        sectors = {
            int(address + step) >> 5
            for address in addresses[acting]
            for step in range(0, width, min(width, 32))
        }
        return len(sectors), tuple(sorted(sectors))

    def _address(self, text: str) -> Word:
        found = _ADDRESS.match(text)
        if found is None:
            return np.zeros(_LANES, np.int64), np.zeros(_LANES, bool)
        base, scale, uniform, offset = found.groups()
        values, known = np.zeros(_LANES, np.int64), np.ones(_LANES, bool)
        if base:
            wide = ".64" in text
            values, known = self._pair(base) if wide else self._word(base)
            if not wide and scale is None and "U32" not in text and base.startswith("R"):
                # An address of device memory without UR has two registers all the same.
                values = values.copy()
            values = values * int(scale or 1)
        if uniform:
            more, more_known = self._word(uniform)
            values, known = values + more, known & more_known
        return values + int(offset or "0", 16), known

    # -- arithmetic -------------------------------------------------------------------------------

    def _execute(self, instruction: Instruction, acting: Known, doubtful: Known) -> None:
        operation = instruction.operation
        if operation in _SILENT or not acting.any():
            return
        handler = _HANDLERS.get(operation)
        if handler is not None:
            handler(self, instruction, acting & ~doubtful)
            if doubtful.any():
                self._forget(instruction, doubtful)
        else:
            self._forget(instruction, acting)

    def _forget(self, instruction: Instruction, acting: Known) -> None:
        """What an instruction of no interest writes is not known afterwards."""
        if instruction.operation in ("STG", "STS", "STL", "RED"):
            return
        for text in instruction.operands[:2]:
            name = text.partition(".")[0]
            if re.fullmatch(r"P\d", name):
                self.predicates_known[int(name[1]), acting] = False
            elif re.fullmatch(r"UP\d", name):
                self.uniform_predicates[int(name[2])] = None
            elif re.fullmatch(r"R\d+", name):
                count = max(1, _result_bytes(instruction) // 4)
                number = int(name[1:])
                self.known[number : number + count, acting] = False
                return
            elif re.fullmatch(r"UR\d+", name):
                self.uniform[int(name[2:])] = self.uniform[int(name[2:]) + 1] = None
                return
            elif name not in ("PT", "UPT"):
                return

    def put(self, text: str, values: Values, known: Known, acting: Known) -> None:
        """Write a register, uniform or not."""
        name = text.partition(".")[0]
        if name in ("RZ", "URZ"):
            return
        values = values & 0xFFFFFFFF
        if name.startswith("UR"):
            sure = bool(known[acting].all())
            self.uniform[int(name[2:])] = int(values[acting][0]) if sure else None
            return
        number = int(name[1:])
        self.registers[number, acting] = values[acting]
        self.known[number, acting] = known[acting]

    def put_pair(self, text: str, values: Values, known: Known, acting: Known) -> None:
        """Write two registers."""
        self.put(text, values, known, acting)
        name = text.partition(".")[0]
        if name not in ("RZ", "URZ"):
            kind, number = re.match(r"(U?R)(\d+)", name).groups()  # type: ignore[union-attr]
            self.put(f"{kind}{int(number) + 1}", values >> 32, known, acting)

    def put_predicate(self, text: str, values: Known, known: Known, acting: Known) -> None:
        """Write a predicate, uniform or not."""
        if text in ("PT", "UPT"):
            return
        if text.startswith("U"):
            sure = bool(known[acting].all())
            self.uniform_predicates[int(text[2:])] = bool(values[acting][0]) if sure else None
            return
        self.predicates[int(text[1:]), acting] = values[acting]
        self.predicates_known[int(text[1:]), acting] = known[acting]


def _bytes(instruction: Instruction) -> int:
    """Bytes per lane of an access to memory."""
    if instruction.operation == "LDSM":
        return 4 * int(instruction.name[-1])
    modifiers = instruction.modifiers
    for name, size in (("128", 16), ("64", 8), ("U16", 2), ("S16", 2), ("U8", 1), ("S8", 1)):
        if name in modifiers:
            return size
    return 4


def _result_bytes(instruction: Instruction) -> int:
    if instruction.operation in _MEMORY:
        return _bytes(instruction)
    if instruction.operation == "IMMA":
        return 16 if "16832" in instruction.name or "16816" in instruction.name else 8
    return 8 if "WIDE" in instruction.modifiers or "64" in instruction.modifiers else 4


def _passes(addresses: Values, width: int, acting: Known) -> int:
    """Passes over the 32 banks of 4 bytes: as many as one bank has different words to give."""
    words = {
        (int(address) + step) >> 2
        for address in addresses[acting]
        for step in range(0, width, min(width, 4))
    }
    if not words:
        return 0
    banks = np.bincount([word % 32 for word in words], minlength=32)
    return int(banks.max())


# -- one function per operation -------------------------------------------------------------------


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


def _imad(warp: _Warp, instruction: Instruction, acting: Known) -> None:
    _, operands, trailing = _split(instruction)
    to, _written, (a, b, c) = _results(operands)
    wide = {"WIDE", "HI"} & instruction.modifiers
    (x, x_known), (y, y_known) = warp._word(a), warp._word(b)
    z, z_known = warp._pair(c) if wide else warp._word(c)
    if wide and "U32" not in instruction.modifiers:
        x, y = _signed(x), _signed(y)
    zero = (x_known & (x == 0)) | (y_known & (y == 0))
    known = (zero | (x_known & y_known)) & z_known
    # Products of 64 bits wrap in NumPy as they do there.
    with np.errstate(over="ignore"):
        product = np.where(zero, 0, x * y)
        total = product + z
    for text in trailing:
        if "X" in instruction.modifiers:
            carry, carry_known = warp._predicate(text)
            total, known = total + carry, known & carry_known
    if "WIDE" in instruction.modifiers:
        warp.put_pair(to, total, known, acting)
    else:
        warp.put(to, total >> 32 if "HI" in instruction.modifiers else total, known, acting)


def _iadd3(warp: _Warp, instruction: Instruction, acting: Known) -> None:
    _, operands, trailing = _split(instruction)
    to, written, sources = _results(operands)
    total, known = np.zeros(_LANES, np.int64), np.ones(_LANES, bool)
    for text in sources:
        values, sure = warp._word(text)
        total, known = total + values, known & sure
    if "X" in instruction.modifiers:
        for text in trailing:
            if text.lstrip("!").endswith("PT"):
                continue
            carry, sure = warp._predicate(text)
            total, known = total + carry, known & sure
    for text in written:
        warp.put_predicate(text, total >> 32 > 0, known, acting)
    warp.put(to, total, known, acting)


def _mov(warp: _Warp, instruction: Instruction, acting: Known) -> None:
    warp.put(instruction.operands[0], *warp._word(instruction.operands[1]), acting)


def _lop3(warp: _Warp, instruction: Instruction, acting: Known) -> None:
    _, operands, _trailing = _split(instruction)
    written = []
    while re.fullmatch(r"U?P(\d|T)", operands[0]):
        written.append(operands.pop(0))
    to, a, b, c, table_text = operands
    words = [warp._word(text) for text in (a, b, c)]
    table = int(table_text, 16)
    result = np.zeros(_LANES, np.int64)
    for row in range(8):
        if table >> row & 1:
            part = np.full(_LANES, 0xFFFFFFFF)
            for bit, (values, _) in zip((4, 2, 1), words, strict=True):
                part &= values if row & bit else ~values
            result |= part
    known = words[0][1] & words[1][1] & words[2][1]
    for text in written:
        warp.put_predicate(text, result & 0xFFFFFFFF != 0, known, acting)
    warp.put(to, result, known, acting)


def _shf(warp: _Warp, instruction: Instruction, acting: Known) -> None:
    to, low_text, count_text, high_text = instruction.operands
    (low, low_known), (count, count_known) = warp._word(low_text), warp._word(count_text)
    high, high_known = warp._word(high_text)
    modifiers = instruction.modifiers
    count = count & (63 if {"U64", "S64"} & modifiers else 31)
    if {"U64", "S64"} & modifiers:
        known = low_known & high_known & count_known
        whole = (high & 0x7FFFFFFF) << 32 | low
        moved = whole >> count if "R" in modifiers else whole << count
        warp.put(to, moved >> 32 if "HI" in modifiers else moved, known, acting)
        return
    if "R" in modifiers and "HI" in modifiers:
        source = _signed(high) if "S32" in modifiers else high
        warp.put(to, source >> count, high_known & count_known, acting)
        return
    moved = low << count if "L" in modifiers else low >> count
    warp.put(to, moved, low_known & count_known, acting)


def _lea(warp: _Warp, instruction: Instruction, acting: Known) -> None:
    _, operands, trailing = _split(instruction)
    to, written, sources = _results(operands)
    modifiers = instruction.modifiers
    a, b, *rest = sources
    shift = int(rest[-1], 16)
    (x, x_known), (y, y_known) = warp._word(a), warp._word(b)
    known = x_known & y_known
    if "HI" not in modifiers:
        total = (x << shift & 0xFFFFFFFF) + y
        for text in written:
            warp.put_predicate(text, total >> 32 > 0, known, acting)
    elif "SX32" in modifiers:
        total = (_signed(x) >> (32 - shift)) + y
    else:
        high, high_known = warp._word(rest[0])
        total, known = (high << shift | x >> (32 - shift)) + y, known & high_known
    if "X" in modifiers:
        for text in trailing:
            carry, sure = warp._predicate(text)
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


def _isetp(warp: _Warp, instruction: Instruction, acting: Known) -> None:
    first, second, a, b, *others = instruction.operands
    kind = instruction.name.split(".")[1]
    (x, x_known), (y, y_known) = warp._word(a), warp._word(b)
    if "U32" not in instruction.modifiers:
        x, y = _signed(x), _signed(y)
    found, known = _COMPARE[kind](x, y), x_known & y_known
    if "EX" in instruction.modifiers:
        lower, lower_known = warp._predicate(others[1])
        if kind in ("EQ", "NE"):
            found = found & lower if kind == "EQ" else found | lower
        else:
            found = np.where(x == y, lower, found)
        known = known & lower_known
    other, other_known = warp._predicate(others[0])
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


def _plop3(warp: _Warp, instruction: Instruction, acting: Known) -> None:
    first, second, a, b, c, *tables = instruction.operands
    inputs = [warp._predicate(text) for text in (a, b, c)]
    known = inputs[0][1] & inputs[1][1] & inputs[2][1]
    for to, text in zip((first, second), tables, strict=False):
        result = np.zeros(_LANES, bool)
        for row in range(8):
            if int(text, 16) >> row & 1:
                part = np.ones(_LANES, bool)
                for bit, (values, _) in zip((4, 2, 1), inputs, strict=True):
                    part &= values if row & bit else ~values
                result |= part
        warp.put_predicate(to, result, known, acting)


def _sel(warp: _Warp, instruction: Instruction, acting: Known) -> None:
    to, a, b, predicate = instruction.operands
    (x, x_known), (y, y_known) = warp._word(a), warp._word(b)
    chosen, known = warp._predicate(predicate)
    warp.put(to, np.where(chosen, x, y), np.where(chosen, x_known, y_known) & known, acting)


def _imnmx(warp: _Warp, instruction: Instruction, acting: Known) -> None:
    to, a, b, predicate = instruction.operands
    (x, x_known), (y, y_known) = warp._word(a), warp._word(b)
    if "U32" not in instruction.modifiers:
        x, y = _signed(x), _signed(y)
    least, known = warp._predicate(predicate)
    result = np.where(least, np.minimum(x, y), np.maximum(x, y))
    warp.put(to, result, x_known & y_known & known, acting)


def _iabs(warp: _Warp, instruction: Instruction, acting: Known) -> None:
    values, known = warp._word(instruction.operands[1])
    warp.put(instruction.operands[0], np.abs(_signed(values)), known, acting)


def _prmt(warp: _Warp, instruction: Instruction, acting: Known) -> None:
    to, a, selector_text, b = instruction.operands
    (x, x_known), (y, y_known) = warp._word(a), warp._word(b)
    selector, known = warp._word(selector_text)
    whole = [x >> 8 * i & 255 for i in range(4)] + [y >> 8 * i & 255 for i in range(4)]
    result = np.zeros(_LANES, np.int64)
    for place in range(4):
        nibble = selector >> 4 * place & 15
        byte = np.choose(nibble & 7, whole)
        result |= np.where(nibble & 8, np.where(byte & 128, 255, 0), byte) << 8 * place
    warp.put(to, result, x_known & y_known & known, acting)


def _special(warp: _Warp, instruction: Instruction, acting: Known) -> None:
    to, source = instruction.operands
    values = warp.special.get(source)
    known = np.full(_LANES, values is not None)
    warp.put(to, np.zeros(_LANES, np.int64) if values is None else values, known, acting)


def _zero_pair(warp: _Warp, instruction: Instruction, acting: Known) -> None:
    known = np.full(_LANES, instruction.operands[1] == "SRZ")
    zero = np.zeros(_LANES, np.int64)
    if "32" in instruction.modifiers:
        warp.put(instruction.operands[0], zero, known, acting)
    else:
        warp.put_pair(instruction.operands[0], zero, known, acting)


def _uldc(warp: _Warp, instruction: Instruction, acting: Known) -> None:
    to, source = instruction.operands
    if "64" in instruction.modifiers:
        warp.put_pair(to, *warp._pair(source), acting)
    else:
        warp.put(to, *warp._word(source), acting)


_HANDLERS: dict[str, Callable[[_Warp, Instruction, Known], None]] = {
    **{"IMAD": _imad, "UIMAD": _imad, "IADD3": _iadd3, "UIADD3": _iadd3},
    **{"MOV": _mov, "UMOV": _mov, "R2UR": _mov, "LOP3": _lop3, "ULOP3": _lop3},
    **{"SHF": _shf, "USHF": _shf, "LEA": _lea, "ULEA": _lea, "ISETP": _isetp, "UISETP": _isetp},
    **{"PLOP3": _plop3, "UPLOP3": _plop3, "SEL": _sel, "USEL": _sel, "IMNMX": _imnmx},
    **{"IABS": _iabs, "PRMT": _prmt, "UPRMT": _prmt, "S2R": _special, "S2UR": _special},
    **{"CS2R": _zero_pair, "ULDC": _uldc},
}
