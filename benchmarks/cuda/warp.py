"""Following a warp through machine code: what it executes, and which memory it touches.

Shapes are constants in our kernels, so that nearly all control flow follows from constants and the
numbers of thread and block. Registers of the 32 lanes therefore hold numbers where these are known,
and nothing where they come from memory. Lanes that part are followed by their own program counters,
the lowest address first, which is where structured code meets again.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np

from .errors import GpuBenchmarkError
from .lanes import LANES, Known, Lanes, Launch, Values, Word
from .operations import OPERATIONS
from .sass import Instruction

__all__ = ["Executed", "Launch", "Trace", "follow_warp"]

_MOST_INSTRUCTIONS = 400_000
_MEMORY = frozenset({"LDG", "STG", "LDS", "STS", "LDSM", "LDL", "STL", "RED", "ATOMG", "ATOMS"})
_SILENT = frozenset({"NOP", "BSSY", "BSYNC", "BMOV", "WARPSYNC", "YIELD", "BAR", "DEPBAR", "MEMBAR",
                     "ERRBAR", "CCTL", "BREAK"})  # fmt: skip
_ADDRESS = re.compile(
    r"^\[(?:(U?R(?:\d+|Z))(?:\.(?:X(\d+)|64|U32))*)?(?:\+?(UR\d+))?(?:\+?(-?0x[0-9a-f]+))?\]$"
)


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


class _Warp(Lanes):
    def __init__(self, code: list[Instruction], launch: Launch) -> None:
        super().__init__(launch)
        self.code = code
        self.places = {instruction.address: i for i, instruction in enumerate(code)}
        self.trace = Trace()

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
            return np.ones(LANES, bool), np.ones(LANES, bool)
        return self.predicate(instruction.predicate)

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
            return (max(1, width * LANES // (128 if shared else 32)),)
        if instruction.operation == "LDSM":
            # Eight rows of 16 bytes per matrix; lane l gives the row l % 8 of matrix l / 8.
            matrices = int(instruction.name[-1])
            rows = np.ones(8, bool)
            passes = (_passes(addresses[8 * m : 8 * m + 8], 16, rows) for m in range(matrices))
            return (sum(passes),)
        if instruction.operation in ("LDS", "STS", "ATOMS"):
            # Lanes are served in groups that can fill a pass: 32, 16 or 8.
            group = min(LANES, 128 // width)
            passes = (
                _passes(addresses[g : g + group], width, acting[g : g + group])
                for g in range(0, LANES, group)
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
            return np.zeros(LANES, np.int64), np.zeros(LANES, bool)
        base, scale, uniform, offset = found.groups()
        values, known = np.zeros(LANES, np.int64), np.ones(LANES, bool)
        if base:
            wide = ".64" in text
            values, known = self.pair(base) if wide else self.word(base)
            if not wide and scale is None and "U32" not in text and base.startswith("R"):
                # An address of device memory without UR has two registers all the same.
                values = values.copy()
            values = values * int(scale or 1)
        if uniform:
            more, more_known = self.word(uniform)
            values, known = values + more, known & more_known
        return values + int(offset or "0", 16), known

    # -- arithmetic -------------------------------------------------------------------------------

    def _execute(self, instruction: Instruction, acting: Known, doubtful: Known) -> None:
        operation = instruction.operation
        if operation in _SILENT or not acting.any():
            return
        handler = OPERATIONS.get(operation)
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
