"""How attention is cut into blocks, warps and steps of keys, and which cut a shape gets.

A warp takes 16 rows. More row groups in a block share what is loaded of K and V; more key groups
share the work on a row, which fills a GPU where there are few rows. Which is better is estimated
from the number of instructions that a warp executes, and from how many warps a multiprocessor has
to hide their latency with.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ibert_tvm.targets import Gpu

_WARP = 32
_ROWS = 16
# Further than any sequence is long.
_ANY_DISTANCE = 2**31 - 1
_CHUNK = 16
_LEAST_STEP = 32
_REGISTER_FILE = 65536
_LOOP_REGISTERS, _SECOND_PASS_REGISTERS = 40, 24
# What values of two bytes need on their way to shared memory.
_PART_REGISTERS = 16
# What arithmetic in 64 bits may need besides; a block that has not got them would spill.
_WIDE_REGISTERS = 40
_STATIC_SHARED_BYTES = 48 << 10
_MOST_THREADS = 512
# Scores that a lane holds at most; with more, keys of all steps are multiplied twice, in a loop
# that needs registers for where each thread copies to and from as well.
_MOST_SCORES, _MOST_SCORES_OF_LOOP = 64, 32
# Instructions, counted in SASS: of the softmax per score; beside a product of 16 x 16 x 32; per 16
# bytes copied; and what a warp executes besides.
_PER_SCORE = 15
_PER_PRODUCT = 3
_PER_COPY = 8
_PER_WARP = 200
# Cycles that a block waits for bytes from memory and at barriers, for each of K and V and each
# step; other blocks of the multiprocessor work meanwhile.
_WAIT = 500
# Cycles between dependent instructions that one warp cannot fill with others of its own.
_LATENCY = 3
_SCHEDULERS = 4


@dataclass(frozen=True)
class AttentionSizes:
    """What there is to compute.

    Attributes
    ----------
    batch, heads, seq_len, head_dim
        Of the operator.
    keys
        Keys that the stages of the kernel know; those behind `seq_len` count as masked.
    result_bytes
        Of one result.
    value_parts
        Bytes of an entry of V.
    before, after
        How far before its query and behind it a key may lie.
    """

    batch: int
    heads: int
    seq_len: int
    head_dim: int
    keys: int
    result_bytes: int
    value_parts: int = 1
    before: int = _ANY_DISTANCE
    after: int = _ANY_DISTANCE

    @property
    def depth(self) -> int:
        """Channels of a head, padded to whole chunks."""
        return _round_up(self.head_dim, _CHUNK)

    @property
    def windowed(self) -> bool:
        """Whether there are pairs of query and key that do not see each other."""
        return min(self.before, self.after) < self.seq_len - 1

    @property
    def lead(self) -> int:
        """Keys in front of a tile of queries, in whole fragments."""
        return _round_up(self.before, _ROWS)

    def run_keys(self, rows: int) -> int:
        """Keys of the run that holds all that a tile of so many queries sees, wherever it is."""
        return min(self.keys, _round_up(rows + self.lead + self.after, _LEAST_STEP))


@dataclass(frozen=True)
class AttentionTile:
    """Decisions on an attention kernel; parameters of ``ibert::Attention`` (attention.cuh).

    Attributes
    ----------
    row_groups, key_groups
        Warps of a block along rows, 16 each, and along keys.
    step_keys
        Keys that are in shared memory at a time.
    steps
        How often that is for all keys.
    held
        Whether scores of all steps stay in registers; otherwise they are computed once for the
        maximum, and again for the exponentials.
    value_tile
        Whether V has shared memory of its own, so that it comes together with K.
    """

    row_groups: int
    key_groups: int
    step_keys: int
    steps: int
    held: bool
    value_tile: bool

    @property
    def rows(self) -> int:
        """Query rows of a block."""
        return _ROWS * self.row_groups

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return _WARP * self.row_groups * self.key_groups

    @property
    def warp_keys(self) -> int:
        """Keys of a step that one warp takes."""
        return self.step_keys // self.key_groups

    @property
    def scores(self) -> int:
        """Scores in the registers of a lane."""
        return self.warp_keys // 2 * (self.steps if self.held else 1)

    def steps_seen(self, sizes: AttentionSizes) -> list[int]:
        """How many steps each tile of queries takes: those with a key that one of them sees."""
        run, counts = sizes.run_keys(self.rows), []
        for row in range(0, sizes.seq_len, self.rows):
            base = min(max(row - sizes.lead, 0), sizes.keys - run)
            low = max(row - sizes.before, 0) - base
            high = min(row + self.rows - 1 + sizes.after, sizes.seq_len - 1) - base
            counts.append(high // self.step_keys + 1 - low // self.step_keys)
        return counts

    def shared_bytes(self, sizes: AttentionSizes) -> int:
        """Shared memory of a block, as attention.cuh lays it out."""
        head_pitch, key_pitch = _power_of_two(sizes.depth), _power_of_two(self.step_keys)
        parts = sizes.value_parts + (1 if self.value_tile else 0)
        tiles = self.step_keys * head_pitch * parts
        rows = self.rows * (head_pitch + key_pitch)
        used = tiles + rows + 4 * self.step_keys + 4 * self.key_groups * self.rows
        result = sizes.depth * sizes.result_bytes
        return max(used, self.rows * (result if result // _CHUNK % 2 else result + _CHUNK))

    def registers(self, sizes: AttentionSizes) -> int:
        """Registers of a thread, about: scores, context, queries, and what loops need."""
        chunks = sizes.depth // _CHUNK
        context = 8 * -(-chunks // self.key_groups) * sizes.value_parts
        loop = _LOOP_REGISTERS + (_PART_REGISTERS if sizes.value_parts > 1 else 0)
        loop += 0 if self.held else _SECOND_PASS_REGISTERS
        return _round_up(loop + self.scores + context + 2 * chunks, 8)

    def problem(self, sizes: AttentionSizes) -> str:
        """Why no device can follow these decisions; empty if all can."""
        if min(self.row_groups, self.key_groups, self.step_keys, self.steps) < 1:
            return "a block without warps or keys"
        if self.threads > _MOST_THREADS:
            return f"{self.threads} threads in a block: at most {_MOST_THREADS}"
        granule = math.lcm(_LEAST_STEP, _CHUNK * self.key_groups)
        if self.step_keys % granule:
            return (
                f"a step of {self.step_keys} keys for {self.key_groups} warps: it must be a "
                f"multiple of {granule}"
            )
        keys = sizes.run_keys(self.rows)
        if not 0 <= self.steps * self.step_keys - keys < self.step_keys:
            return f"{self.steps} steps of {self.step_keys} keys for {keys} keys"
        most = _MOST_SCORES if self.held else _MOST_SCORES_OF_LOOP
        if self.scores > most:
            return f"{self.scores} scores in registers: at most {most}"
        used = self.shared_bytes(sizes)
        if used > _STATIC_SHARED_BYTES:
            return f"{used} bytes of shared memory: at most {_STATIC_SHARED_BYTES}"
        return ""


def candidate_tiles(sizes: AttentionSizes, gpu: Gpu) -> list[AttentionTile]:
    """Tiles that a device can run, that with the least estimated time first.

    There is one for every length: what does not fit is cut into steps.

    Parameters
    ----------
    sizes
        Of the kernel.
    gpu
        What it runs on.
    """
    time = {tile: cycles(tile, sizes, gpu) for tile in _candidates(sizes)}
    return sorted(
        (tile for tile in time if time[tile] < float("inf")),
        key=lambda tile: (time[tile], tile.threads),
    )


def _candidates(sizes: AttentionSizes) -> list[AttentionTile]:
    found = []
    for row_groups in (1, 2, 4):
        if row_groups > 1 and _ROWS * row_groups // 2 >= sizes.seq_len:
            continue
        keys = sizes.run_keys(_ROWS * row_groups)
        for key_groups in (1, 2, 4, 8):
            if _WARP * row_groups * key_groups > _MOST_THREADS:
                continue
            granule = max(_LEAST_STEP, _CHUNK * key_groups)
            for granules in range(1, -(-keys // granule) + 1):
                step_keys = granule * granules
                steps = -(-keys // step_keys)
                scores = step_keys // key_groups // 2
                if scores > _MOST_SCORES or step_keys > 2 * _CHUNK * _CHUNK:
                    break
                for value_tile in (True, False) if steps == 1 else (False,):
                    held = scores * steps <= _MOST_SCORES
                    tile = AttentionTile(row_groups, key_groups, step_keys, steps, held, value_tile)
                    if not tile.problem(sizes):
                        found.append(tile)
                        break
    return found


def cycles(tile: AttentionTile, sizes: AttentionSizes, gpu: Gpu) -> float:
    """Estimate of the kernel's time in cycles of a multiprocessor; infinite where it cannot run."""
    steps = float(tile.steps)
    if sizes.windowed and tile.steps > 1:
        counts = tile.steps_seen(sizes)
        steps = sum(counts) / len(counts)
    keys = tile.step_keys * steps
    chunks = sizes.depth // _CHUNK
    columns = -(-chunks // tile.key_groups)
    # A product of 16 x 8 x 32 is four instructions up to compute capability 7.5.
    product = _PER_PRODUCT * (1 if gpu.capability >= 80 else 3)
    passes = 1 if tile.held else 2
    warp = (
        _PER_SCORE * keys / (2 * tile.key_groups)
        + passes * product * keys / tile.key_groups / _CHUNK * chunks / 2
        + keys / 32 * (2 + sizes.value_parts * columns * (product + 5))
        + (sizes.value_parts + passes) * keys * chunks / tile.threads * _PER_COPY
        + _PER_WARP
    )
    registers = tile.registers(sizes)
    if (registers + _WIDE_REGISTERS) * tile.threads > _REGISTER_FILE:
        return float("inf")
    threads_of_one = 1024 if gpu.capability < 80 else 1536
    fit = min(
        threads_of_one // tile.threads,
        _REGISTER_FILE // (registers * tile.threads),
        max(gpu.shared_bytes // tile.shared_bytes(sizes), 1),
    )
    blocks = sizes.batch * sizes.heads * -(-sizes.seq_len // tile.rows)
    # Of the multiprocessor with the most blocks: all its schedulers are busy, or the warps that are
    # there wait for themselves.
    most = -(-blocks // gpu.multiprocessors)
    rounds = -(-most // fit)
    waits = _WAIT * steps * (1 + passes)
    busy = most * tile.threads / _WARP * warp / _SCHEDULERS
    return max(busy + rounds * waits / min(most, fit), rounds * (warp * _LATENCY + waits))


def _round_up(number: int, to: int) -> int:
    return -(-number // to) * to


def _power_of_two(number: int) -> int:
    power = _CHUNK
    while power < number:
        power *= 2
    return power
