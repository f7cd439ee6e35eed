"""How a matrix product is cut into blocks, warps and stages, and which cut a shape gets.

A GPU has many multiprocessors, and a product has few tiles: the choice weighs what a large tile
saves (bytes from memory and from shared memory per product) against multiprocessors that have
nothing to do. It is a model in cycles, made of published rates; tuning may say otherwise with
`ibert_tvm.schedules.tiles.with_tile`.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from ibert_tvm.targets import Gpu

_WARP = 32
# A fragment has 16 rows; an instruction takes 8 columns, and ldmatrix loads two such at least.
_FRAGMENT = 16
_CHUNK = 16
# Words that lie between rows of staged sums: targets/cuda/device/gemm.cuh.
_STAGED_PAD = 8
PIECE_ROWS = 16
"""Rows of a warp's tile that come into the order of memory at a time."""
_MOST_ACCUMULATORS = 128
_MOST_REGISTERS = 255
_REGISTER_FILE = 65536
_MOST_BLOCKS = 16
_OTHER_REGISTERS = 36
_SHORTEST_RUN = 2  # columns of a thread in the epilogue
_MOST_DEPTH = 128  # of a stage that one warp multiplies
_WARP_TILES = (
    *((64, 64), (64, 48), (64, 32), (48, 64), (48, 32), (32, 64), (32, 48), (32, 32), (32, 16)),
    *((16, 64), (16, 48), (16, 32), (16, 16)),
)
ASYNC_COPIES = 80
"""Compute capability from which copies to shared memory are asynchronous."""


@dataclass(frozen=True)
class GemmTile:
    """Decisions on a matrix product; the parameters of ``ibert::Gemm`` (gemm.cuh).

    Attributes
    ----------
    block_rows, block_columns
        Results of one block of threads.
    warp_rows, warp_columns
        Results of one warp; multiples of 16 that divide the block's.
    warp_depths
        Warps that share a warp's results, each taking a part of the depth.
    stage_depth
        Depth that shared memory holds at a time; a power of two, at least 32 per part.
    stages
        How many such; 2 where copies are not asynchronous.
    """

    block_rows: int
    block_columns: int
    warp_rows: int
    warp_columns: int
    warp_depths: int = 1
    stage_depth: int = 64
    stages: int = 2

    def __post_init__(self) -> None:
        multiples = (
            ("warp_rows", self.warp_rows, "16", _FRAGMENT),
            ("warp_columns", self.warp_columns, "16", _FRAGMENT),
            ("block_rows", self.block_rows, "warp_rows", self.warp_rows),
            ("block_columns", self.block_columns, "warp_columns", self.warp_columns),
            ("stage_depth", self.stage_depth, "32 per part of the depth", 32 * self.warp_depths),
        )
        problems = [
            (min(size, unit) < 1 or size % max(unit, 1), f"{name} is no multiple of {of}")
            for name, size, of, unit in multiples
        ]
        parts = self.warp_depths
        problems += [
            (self.stage_depth & (self.stage_depth - 1), "stage_depth is no power of two"),
            (not 2 <= self.stages <= 8, "stages is not within 2 to 8"),
            (self.accumulators > _MOST_ACCUMULATORS, "a warp's tile has over 4096 results"),
            (self.threads > 1024, "a block has over 1024 threads"),
            (
                parts & (parts - 1) or self.warp_columns // 2 < parts,
                "warp_depths is no power of two up to half of warp_columns",
            ),
        ]
        for wrong, why in problems:
            if wrong:
                raise ValueError(f"GemmTile: {why}: {self}")

    @property
    def warps(self) -> int:
        """Warps of a block."""
        return (
            self.block_rows
            // max(self.warp_rows, 1)
            * (self.block_columns // max(self.warp_columns, 1))
            * self.warp_depths
        )

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return _WARP * self.warps

    @property
    def accumulators(self) -> int:
        """Sums of 32 bits that a thread holds."""
        return self.warp_rows * self.warp_columns // _WARP

    @property
    def stage_bytes(self) -> int:
        """Bytes of both operands in a stage."""
        return (self.block_rows + self.block_columns) * self.stage_depth

    @property
    def staged_bytes(self) -> int:
        """Bytes in which the sums of several warps come together; they replace the operands."""
        if self.warp_depths == 1:
            return 0
        return 4 * PIECE_ROWS * (self.warp_columns + _STAGED_PAD) * self.warps

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block."""
        return max(self.stages * self.stage_bytes, self.staged_bytes)

    @property
    def shared_bytes_of_halves(self) -> int:
        """The same where weights are in half bytes."""
        saved = self.stages * self.block_columns * self.stage_depth // 2
        return max(self.stages * self.stage_bytes - saved, self.staged_bytes)

    @property
    def staged_runs(self) -> int:
        """Columns of a piece of staged sums that a thread has, of all its rows."""
        return self.warp_columns // (2 * self.warp_depths)

    def longest_run(self) -> int:
        """Most neighbouring columns that a thread of the epilogue can have at a time."""
        if self.warp_depths == 1:
            return 8 if self.warp_columns % 32 == 0 else 4
        return min(self.staged_runs & -self.staged_runs, 8)

    def problem(self, gpu: Gpu) -> str:
        """Why a device cannot run it; empty where it can."""
        if self.shared_bytes > gpu.shared_bytes:
            return f"{self.shared_bytes} bytes of shared memory, the device has {gpu.shared_bytes}"
        if gpu.capability < ASYNC_COPIES and self.stages != 2:
            return f"{self.stages} stages, where copies are not asynchronous there are two"
        return ""

    def registers(self, capability: int) -> int:
        """Estimate of the registers of a thread; measured ones are up to 20 fewer."""
        asynchronous = capability >= ASYNC_COPIES
        fragments = 2 * (2 if asynchronous else 1) * (self.warp_rows + self.warp_columns) // 8
        copies = -(-self.stage_bytes // (_CHUNK * self.threads))
        # Bytes on their way to shared memory are held, or only their addresses.
        held = copies * 3 // 2 if asynchronous else copies * 4
        return self.accumulators + fragments + held + _OTHER_REGISTERS


@dataclass(frozen=True)
class _Rates:
    """What a multiprocessor does in a cycle, and how long it waits.

    Attributes
    ----------
    products
        8-bit products that tensor cores add, with the instruction that is used here.
    shared_bytes
        Read from or written to shared memory.
    memory_bytes
        From the level-2 cache, when all multiprocessors ask for them.
    shared_total
        Shared memory of all blocks of a multiprocessor.
    """

    products: int
    shared_bytes: int
    memory_bytes: int
    shared_total: int


# Published rates (the whitepapers of Turing, Ampere and Hopper; CUDA C++ Programming Guide,
# "Compute Capabilities"), and bandwidths of level 2 that others measured. On Hopper mma.sync
# reaches about five eighths of what its own instructions do.
_RATES = {
    75: _Rates(1024, 64, 20, 64 << 10),
    80: _Rates(2048, 128, 32, 164 << 10),
    86: _Rates(1024, 128, 24, 100 << 10),
    87: _Rates(1024, 128, 24, 164 << 10),
    89: _Rates(1024, 128, 24, 100 << 10),
    90: _Rates(2560, 128, 30, 228 << 10),
}
# Below 8.0 bytes pass the registers on their way from memory to shared memory, and with that the
# path of both twice.
_LATENCY = 350  # cycles from a request to memory until its bytes can be multiplied
_BARRIER = 40  # cycles that a stage takes beside its work
_LAUNCH = 1500  # cycles before the first request and behind the last result
_EPILOGUE_INSTRUCTIONS = 14  # per result: between requantisation and an activation
_RUN_INSTRUCTIONS = 40  # per run of columns: addresses, loads and stores
_EXECUTED = 96  # of these in a cycle: 64 of one kind (shifts, comparisons), 64 multiply-adds
_EXPOSED = 0.6  # of an epilogue, what other blocks of the multiprocessor do not hide
_PARTITIONS = 4  # of a multiprocessor; a warp uses one
_BUSY_WARPS = 8  # of a multiprocessor that keep its units busy
_FEW_WARPS = 1.5  # how much longer an epilogue takes at most that few warps execute
_REFILL = 150  # cycles behind a barrier until products go on, where no other block has some
_CONTENTION = 1.1  # how much longer shared memory takes than its bytes alone
_IN_STEP = 1.25  # how much longer a stage takes then
_STEP = 16  # depth that is multiplied at a time where copies are not asynchronous


def rates(capability: int) -> _Rates:
    """Rates of the newest architecture that is not newer than `capability`."""
    return _RATES[max(number for number in _RATES if number <= max(capability, 75))]


def resident_blocks(tile: GemmTile, capability: int) -> int:
    """Blocks that a multiprocessor holds at a time."""
    registers = -(-tile.registers(capability) // 8) * 8 * tile.threads
    reserved = 1024 if capability >= ASYNC_COPIES else 0
    return max(
        1,
        min(
            rates(capability).shared_total // (tile.shared_bytes + reserved),
            _REGISTER_FILE // registers,
            _MOST_BLOCKS,
            (1024 if capability == 75 else 2048) // tile.threads,
        ),
    )


def cycles(tile: GemmTile, rows: int, columns: int, depth: int, gpu: Gpu) -> float:
    """Model of how long a product takes, in cycles of a multiprocessor.

    Parameters
    ----------
    tile
        How it is cut.
    rows, columns, depth
        Its sizes.
    gpu
        The device.

    Returns
    -------
    float
        Of the multiprocessor that has most blocks: it executes as many as it holds together, then
        as many again, and so on.
    """
    blocks = -(-rows // tile.block_rows) * -(-columns // tile.block_columns)
    most = -(-blocks // gpu.multiprocessors)
    together = min(most, resident_blocks(tile, gpu.capability))
    stages = -(-depth // tile.stage_depth)
    # Few blocks have level 2 for themselves, up to what one multiprocessor can take.
    share = max(min(blocks, gpu.multiprocessors) / gpu.multiprocessors, 0.4)
    rounds, rest = divmod(most, together)
    time = rounds * _round(tile, together, stages, share, gpu)
    return _LAUNCH + time + (_round(tile, rest, stages, share, gpu) if rest else 0)


def _round(tile: GemmTile, together: int, stages: int, share: float, gpu: Gpu) -> float:
    """Cycles in which so many blocks at a time go through all their stages and their epilogues."""
    rate = rates(gpu.capability)
    asynchronous = gpu.capability >= ASYNC_COPIES
    entries = tile.block_rows * tile.block_columns
    products = entries * tile.stage_depth / rate.products
    # One ldmatrix takes 16 rows and a depth of 32, or 32 rows and one of 16.
    rows = _FRAGMENT if asynchronous else 2 * _FRAGMENT
    loaded = sum(-(-size // rows) * rows for size in (tile.warp_rows, tile.warp_columns))
    read = tile.warps * loaded * tile.stage_depth / tile.warp_depths
    moved = read + tile.stage_bytes * (1 if asynchronous else 2)
    shared = moved / rate.shared_bytes * _CONTENTION
    memory = tile.stage_bytes / rate.memory_bytes * share
    # A stage of all blocks, where nothing waits for anything.
    busy = together * max(products * _unevenness(tile.warps * together), shared, memory)
    # A stage of one block, from one barrier to the next.
    alone = max(products * _unevenness(tile.warps), shared) + _BARRIER
    if asynchronous:
        waiting = max(alone, (_LATENCY + memory * together) / (tile.stages - 1))
    else:
        # What was requested when a stage began is stored before its last step. Few warps hide
        # little of what they wait for.
        hidden = _LATENCY * max(0.0, _BUSY_WARPS / (tile.warps * together) - 1)
        last = alone * _STEP * tile.warp_depths / tile.stage_depth
        waiting = max(alone - last, _LATENCY + memory * together) + last + hidden
    if together == 1:
        # Its warps are in step: all want the same unit at the same time.
        uneven = products * _unevenness(tile.warps) * _IN_STEP
        in_step = max(uneven, shared) + _BARRIER + _REFILL
        if asynchronous:
            waiting = max(waiting, in_step)
        else:
            copied = 2 * tile.stage_bytes / rate.shared_bytes
            waiting = max(in_step, memory + copied + hidden)
    staged = entries * 4 * 2 * tile.warp_depths / rate.shared_bytes if tile.staged_bytes else 0
    instructions = _EPILOGUE_INSTRUCTIONS + _RUN_INSTRUCTIONS / tile.longest_run()
    epilogue = max(staged, entries * instructions / _EXECUTED)
    exposed = epilogue * together * (_EXPOSED if together > 1 else 1.0)
    # Few warps execute it more slowly: each waits for its own results.
    exposed = max(exposed, epilogue * min(_BUSY_WARPS / tile.warps, _FEW_WARPS))
    return _LATENCY + stages * max(busy, waiting) + exposed


def _unevenness(warps: int) -> float:
    """How much longer warps take that do not divide evenly among the partitions."""
    return -(-warps // _PARTITIONS) * _PARTITIONS / warps


def candidates(rows: int, columns: int, depth: int, gpu: Gpu) -> Iterator[GemmTile]:
    """Tiles that make sense for a product on a device.

    Parameters
    ----------
    rows, columns, depth
        Sizes of the product.
    gpu
        The device.

    Yields
    ------
    GemmTile
        None is larger than the product, rounded up; all fit the device.
    """
    most_rows = _rounded_up(rows)
    most_columns = _rounded_up(columns)
    most_depth = 1 << max(5, (depth - 1).bit_length())
    asynchronous = gpu.capability >= ASYNC_COPIES
    for (warp_rows, warp_columns), down, across, parts, stage_depth, stages in itertools.product(
        _WARP_TILES,
        (1, 2, 3, 4),
        (1, 2, 3, 4),
        (1, 2, 4, 8),
        (64, 128, 256),
        (3, 4, 5) if asynchronous else (2,),
    ):
        warps = down * across * parts
        block_rows, block_columns = warp_rows * down, warp_columns * across
        if not 2 <= warps <= 8 or parts > warp_columns // 4 or stage_depth % (32 * parts):
            continue
        if block_rows > max(most_rows, _FRAGMENT) or block_columns > most_columns:
            continue
        # More steps between barriers make the compiler keep addresses in registers.
        if stage_depth > max(64, most_depth) or stage_depth // parts > _MOST_DEPTH:
            continue
        tile = GemmTile(
            block_rows, block_columns, warp_rows, warp_columns, parts, stage_depth, stages
        )
        if tile.shared_bytes > gpu.shared_bytes or tile.longest_run() < _SHORTEST_RUN:
            continue
        registers = tile.registers(gpu.capability)
        if registers > _MOST_REGISTERS or registers * tile.threads > _REGISTER_FILE:
            continue
        yield tile


def _rounded_up(size: int) -> int:
    """A size rounded up to the next that a block may have: a power of two, or thrice one."""
    power = 1 << (size - 1).bit_length() if size > 1 else 1
    thrice = power * 3 // 4
    return max(thrice if thrice >= size and thrice % _FRAGMENT == 0 else power, _FRAGMENT)


@functools.cache
def choose_tile(
    rows: int, columns: int, depth: int, gpu: Gpu, most_sums: int = _MOST_ACCUMULATORS
) -> GemmTile:
    """Tile of a product that nobody tuned: the one that the model says to be fastest.

    Parameters
    ----------
    rows, columns, depth
        Sizes of the product.
    gpu
        The device.
    most_sums
        Sums that a thread may hold: fewer leave registers to an epilogue that needs many.

    Returns
    -------
    GemmTile
        Of equally fast ones, that with the fewest results behind the last, then the fewest bytes
        to load, then the fewest threads.
    """

    def order(tile: GemmTile) -> tuple[float, ...]:
        area = tile.block_rows * tile.block_columns
        computed = -(-rows // tile.block_rows) * -(-columns // tile.block_columns) * area
        loaded = (tile.block_rows + tile.block_columns) / area
        time = math.ceil(cycles(tile, rows, columns, depth, gpu))
        return time, computed, loaded, tile.threads, tile.shared_bytes, tile.stage_depth

    allowed = (
        tile for tile in candidates(rows, columns, depth, gpu) if tile.accumulators <= most_sums
    )
    return min(allowed, key=order)
