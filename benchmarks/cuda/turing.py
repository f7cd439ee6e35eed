"""A multiprocessor of a T4 executing traces of warps: a model, and no measurement.

Four schedulers issue an instruction a cycle each. An instruction waits for the stall that the
compiler encoded in the one before, for the barriers that it names, and for its unit: those of a
scheduler (tensor cores, integers, multiply-add, rare functions) or of the multiprocessor (shared
memory, the way to the second-level cache). Sources of the numbers:

- CUDA C++ Programming Guide, "Throughput of native arithmetic instructions", capability 7.5: 64
  integer additions, shifts, logical operations and multiply-adds per cycle and multiprocessor; 16
  of count-leading-zeros and the like; 32 shuffles.
- NVIDIA's data sheet of the T4: 130 INT8 TOPS, 320 GB/s, 40 multiprocessors at 1.59 GHz.
  130e12 / 2 / 40 / 1.59e9 = 1022 multiply-accumulates per cycle and multiprocessor, so that an
  IMMA.8816 with its 1024 occupies the tensor core of a scheduler for four cycles.
- Jia et al., "Dissecting the NVidia Turing T4 GPU via Microbenchmarking" (arXiv 1903.07486):
  latencies of memory, 64 bytes per cycle of shared memory and first-level cache, and about 1270
  GiB/s of the second-level cache, 21 bytes per cycle and multiprocessor.

What the model leaves out makes times too short: clocks below the boost clock (a T4 has 70 W), bank
conflicts of registers, instruction fetches, conflicts between multiprocessors in the second-level
cache. Of what is read from device memory, only what all blocks read alike is found in the
first-level cache, and only if all of it fits.
"""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass, field

from .sass import Instruction
from .warp import Executed, Trace

__all__ = ["T4", "Machine", "Occupancy", "Simulated", "occupancy", "simulate"]


@dataclass(frozen=True)
class Machine:
    """A GPU of compute capability 7.5.

    Attributes
    ----------
    name : str
        For reports.
    multiprocessors : int
        Their number.
    clock_ghz : float
        Their clock.
    tops : float
        INT8 operations per second, 10^12, by the data sheet.
    memory_gbs : float
        Device memory, 10^9 bytes per second.
    l2_bytes : float
        Bytes per cycle that the second-level cache gives a multiprocessor.
    l1_bytes : int
        Of the first-level cache, beside the shared memory.
    shared_bytes : int
        Shared memory of a multiprocessor that blocks can have.
    registers, most_warps, most_blocks : int
        Of a multiprocessor.
    launch_us : float
        From one kernel of a graph to the next, microseconds: draining the first, launching the
        second.
    call_us : float
        Once a call: launching the graph and waiting for its end.
    """

    name: str = "NVIDIA T4"
    multiprocessors: int = 40
    clock_ghz: float = 1.59
    tops: float = 130.0
    memory_gbs: float = 320.0
    l2_bytes: float = 21.0
    l1_bytes: int = 32 << 10
    shared_bytes: int = 64 << 10
    registers: int = 65536
    most_warps: int = 32
    most_blocks: int = 16
    launch_us: float = 1.5
    call_us: float = 10.0


T4 = Machine()
_SCHEDULERS = 4
# Registers are given to warps in pieces of 256.
_REGISTER_PIECE = 256
_SHARED_PIECE = 256

# Units of a scheduler: what one warp's instruction occupies them for, in cycles.
_TENSOR, _INTEGER, _MULTIPLY, _RARE, _OTHER = "tensor", "integer", "multiply", "rare", "issue"
_MULTIPROCESSOR = ("shared", "l2")
_MULTIPLIES = {"IMAD"}
_RARES = {"FLO", "POPC", "BREV", "MUFU", "I2F", "F2I"}
_FREE = {"NOP", "BRA", "EXIT", "BSSY", "BSYNC", "BMOV", "BAR", "WARPSYNC", "S2R", "S2UR", "CS2R",
         "YIELD", "DEPBAR", "CALL", "RET"}  # fmt: skip
_SHARED_MEMORY = {"LDS", "STS", "LDSM", "ATOMS"}
_DEVICE_MEMORY = {"LDG", "STG", "RED", "ATOMG", "LDL", "STL"}
_SHUFFLE_CYCLES = 4  # 32 of 128 lanes per cycle
_PASS_CYCLES = 2  # 128 bytes at 64 per cycle
_PASS_BYTES = 128
_SECTOR_BYTES = 32
# Cycles until a result that a barrier stands for has come, where nothing else is in the way.
_LATENCY = {"LDS": 19, "LDSM": 26, "LDG": 220, "S2R": 20, "SHFL": 19, "FLO": 14, "POPC": 14}
_OTHER_LATENCY = 10  # operands of a store are read


def _unit(instruction: Instruction) -> tuple[str, int]:
    operation = instruction.operation
    if operation == "IMMA":
        return _TENSOR, 4
    if operation in _MULTIPLIES:
        return _MULTIPLY, 4 if {"WIDE", "HI"} & instruction.modifiers else 2
    if operation in _RARES:
        return _RARE, 8
    if operation.startswith("U") or operation in _FREE:
        return _OTHER, 0
    return _INTEGER, 2


@dataclass(frozen=True)
class Occupancy:
    """How many blocks of a kernel a multiprocessor holds at a time, and what limits them."""

    blocks: int
    limit: str


def occupancy(machine: Machine, warps: int, registers: int, shared_bytes: int) -> Occupancy:
    """Blocks of a kernel that a multiprocessor holds.

    Parameters
    ----------
    machine : Machine
        The GPU.
    warps : int
        Of a block.
    registers : int
        Of a thread.
    shared_bytes : int
        Of a block, dynamic and static.
    """
    per_warp = -(-registers * 32 // _REGISTER_PIECE) * _REGISTER_PIECE
    shared = -(-shared_bytes // _SHARED_PIECE) * _SHARED_PIECE
    limits = {
        "warps": machine.most_warps // warps,
        "blocks": machine.most_blocks,
        "registers": machine.registers // (per_warp * warps) if per_warp else machine.most_blocks,
        "shared memory": machine.shared_bytes // shared if shared else machine.most_blocks,
    }
    limit = min(limits, key=lambda name: limits[name])
    return Occupancy(limits[limit], limit)


@dataclass
class Simulated:
    """What a multiprocessor did with some blocks.

    Attributes
    ----------
    cycles : int
        From the first instruction to the last.
    busy : dict of str to float
        Fraction of that time in which a unit was occupied: ``tensor``, ``integer``, ``multiply``,
        ``rare``, ``issue`` (of all four schedulers), ``shared``, ``l2``.
    """

    cycles: int
    busy: dict[str, float] = field(default_factory=dict)


@dataclass
class _Running:
    """A warp on its way."""

    steps: list[tuple[Instruction, int, int]]
    scheduler: int
    block: int
    at: int = 0
    barriers: list[int] = field(default_factory=lambda: [0] * 6)


def _missed(step: Executed, cached: frozenset[int]) -> int:
    """Sectors that come from the second-level cache."""
    return sum(sector not in cached for sector in step.sectors) if step.sectors else step.transfers


def simulate(
    code: list[Instruction],
    traces: list[Trace],
    blocks: int,
    resident: int,
    machine: Machine = T4,
    cached: frozenset[int] = frozenset(),
) -> Simulated:
    """Let one multiprocessor execute blocks, so many at a time.

    Parameters
    ----------
    code : list of Instruction
        The kernel.
    traces : list of Trace
        Of every warp of a block.
    blocks : int
        How many it executes in all.
    resident : int
        How many it holds at a time.
    machine : Machine
        The GPU.
    cached : frozenset of int
        Sectors of device memory that are found in the first-level cache.

    Returns
    -------
    Simulated
    """
    paths = [
        [(code[step.index], step.transfers, _missed(step, cached)) for step in trace.executed]
        for trace in traces
    ]
    next_issue = [0] * _SCHEDULERS
    units: dict[tuple[str, int], int] = {}
    used: dict[str, int] = dict.fromkeys((_TENSOR, _INTEGER, _MULTIPLY, _RARE, _OTHER), 0)
    used |= dict.fromkeys(_MULTIPROCESSOR, 0)
    queue: list[tuple[int, int, _Running]] = []
    waiting: dict[int, list[tuple[int, _Running]]] = {}
    left: dict[int, int] = {}
    order = itertools.count()
    started = finish = turn = 0

    def start(time: int) -> None:
        nonlocal started, turn
        left[started] = len(paths)
        for path in paths:
            heapq.heappush(queue, (time, next(order), _Running(path, turn % _SCHEDULERS, started)))
            turn += 1
        started += 1

    for _ in range(min(resident, blocks)):
        start(0)
    while queue:
        time, _, warp = heapq.heappop(queue)
        instruction, transfers, missed = warp.steps[warp.at]
        ready = max([time, *(warp.barriers[bar] for bar in instruction.waits)])
        unit, cycles = _unit(instruction)
        keys = [((unit, warp.scheduler), cycles)] if cycles else []
        operation = instruction.operation
        if operation in _SHARED_MEMORY or operation == "SHFL":
            passes = _SHUFFLE_CYCLES if operation == "SHFL" else _PASS_CYCLES * max(transfers, 1)
            keys = [(("shared", 0), passes)]
        elif operation in _DEVICE_MEMORY:
            passes = max(1, round(transfers * _SECTOR_BYTES / _PASS_BYTES))
            keys = [(("shared", 0), passes * _PASS_CYCLES)]
            if missed:
                keys.append((("l2", 0), round(missed * _SECTOR_BYTES / machine.l2_bytes)))
        # Memory instructions wait in a queue of their own; others hold their warp up.
        queued = keys and keys[0][0][0] in _MULTIPROCESSOR
        issue = max(ready, next_issue[warp.scheduler])
        if not queued:
            issue = max([issue, *(units.get(key, 0) for key, _ in keys)])
        if issue > time:  # others may be ready before: take this one again then
            heapq.heappush(queue, (issue, next(order), warp))
            continue
        next_issue[warp.scheduler] = issue + 1
        used[_OTHER] += 1
        done = issue
        for key, taken in keys:
            begin = max(done if queued else issue, units.get(key, 0))
            units[key] = begin + taken
            used[key[0]] += taken
            done = begin + taken
        latency = _LATENCY.get(operation, _OTHER_LATENCY)
        for bar in instruction.sets:
            warp.barriers[bar] = done + latency
        warp.at += 1
        finish = max(finish, issue)
        after = issue + max(instruction.stall, 1)
        if operation == "BAR":
            held = waiting.setdefault(warp.block, [])
            held.append((after, warp))
            if len(held) >= left[warp.block]:
                release = max(moment for moment, _ in held)
                for _, other in held:
                    heapq.heappush(queue, (release, next(order), other))
                held.clear()
        elif warp.at < len(warp.steps):
            heapq.heappush(queue, (after, next(order), warp))
        else:
            left[warp.block] -= 1
            # Those at a barrier wait for nobody who has ended.
            held = waiting.get(warp.block, [])
            if held and len(held) >= left[warp.block]:
                for _, other in held:
                    heapq.heappush(queue, (after, next(order), other))
                held.clear()
            if left[warp.block] == 0 and started < blocks:
                start(issue)
    cycles = max(finish, 1)
    for key, moment in units.items():
        if key[0] in _MULTIPROCESSOR:
            cycles = max(cycles, moment)
    busy = {
        name: round(taken / cycles / (1 if name in _MULTIPROCESSOR else _SCHEDULERS), 3)
        for name, taken in used.items()
    }
    return Simulated(cycles, busy)
