"""Skipping what a kernel would compute for rows that hold no token.

Where the tokens of a padded batch are packed (`ibert_tvm.relay_passes.passes.pack_tokens`), the
first rows of every activation hold tokens and the others nothing; the rows of one sequence lie
together. How many there are is known at run time only, so shapes and schedules stay those of the
whole batch. Rules say which rows a loop goes over, and each iteration whose first row holds no
token is skipped.
"""

from __future__ import annotations

from collections.abc import Sequence

import tvm_ffi
from tvm import ir, s_tir, tirx

from .errors import ScheduleError
from .nodes import Block, Loop, changed, nodes_of, unmarked, with_argument

ROW_COUNT = "ibert.row_count"
"""Attribute of a kernel that emission sets: position of the parameter that holds the first row of
each sequence, and last the number of rows in use. Rows behind them may hold anything; nothing reads
what is computed from them."""
KEYS = "ibert.keys"
"""Attribute of an attention kernel on packed rows: positions of the parameters (K and V) that are
read from the first key of a sequence on. A sequence has as many keys as the bucket is long, rows of
other sequences among them, which are masked; its first key is its first row, or so many rows before
the end."""
ROWS_PER_TOKEN = "ibert.rows_per_token"
"""Attribute of a kernel whose rows are not tokens but their heads: how many each token has."""
BLOCKS = "ibert.blocks_of_rows"
"""Attribute of a kernel for a GPU on packed rows: units of work per token, units that some blocks
along x share, and how many blocks those are. Blocks behind the last unit have nothing to do."""
_ROWS = "ibert.rows"
_ROWS_INSIDE = "ibert.rows_inside"
_SEQUENCES = "ibert.sequences"
TOKENS = "ibert.tokens"
"""Mark of a loop over the tokens of a sequence: tiles, rows of a tile, repeats."""
_LOOPS = (_ROWS, _ROWS_INSIDE, TOKENS, _SEQUENCES)
_STORES = "ibert.stores_tokens"
_ARGUMENT = "ibert.rows_argument"


def mark_row_loop(
    sch: s_tir.Schedule,
    loop: Loop,
    tile: int = 1,
    tiles: int | None = None,
    repeats: int = 1,
    argument: int | None = None,
) -> None:
    """Say which rows a loop goes over, so that it can be guarded; for schedule rules.

    A tile that is begun is computed whole. Operations that must not see arbitrary operands, such
    as a division, therefore need a loop over single rows.

    Parameters
    ----------
    sch
        Schedule of a kernel, packed or not.
    loop
        A loop whose iteration i works on the rows from ``(i // repeats % tiles) * tile``.
    tile
        Rows per iteration.
    tiles
        Number of tiles, where the loop is fused from an outer one and that over tiles.
    repeats
        Iterations in a row that work on the same rows, where another loop is fused behind.
    argument
        Where functions in C are called inside for the rows of the tile: the place of the argument
        that counts them. They get no row that is not in use.
    """
    count = int(sch.get(loop).extent) if tiles is None else tiles
    sch.annotate(loop, _ROWS, [count, tile, repeats])
    if argument is not None:
        sch.annotate(loop, _ARGUMENT, argument)


def mark_inner_row_loop(sch: s_tir.Schedule, loop: Loop, rows: int, tile: int = 1) -> None:
    """Say which rows a loop inside of a marked one goes over, from the first of that one's on.

    Parameters
    ----------
    sch
        Schedule of a kernel, packed or not.
    loop
        A loop whose iteration i works on `tile` rows from ``i * tile`` of those of the outer loop.
    rows
        Rows of the kernel without padding: those in use where it is told no other number.
    tile
        Rows per iteration.
    """
    sch.annotate(loop, _ROWS_INSIDE, [rows, tile])


def mark_sequence_loop(sch: s_tir.Schedule, loop: Loop, inner: int = 1) -> None:
    """Say which sequence a loop works on: iteration i on sequence ``i // inner``.

    At most one loop of a kernel; loops inside of it may be marked by `mark_token_loop`.
    """
    sch.annotate(loop, _SEQUENCES, inner)


def mark_token_loop(
    sch: s_tir.Schedule,
    loop: Loop,
    tile: int = 1,
    argument: int | None = None,
) -> None:
    """Say which tokens of its sequence a loop goes over, as `mark_row_loop` says rows."""
    sch.annotate(loop, TOKENS, [int(sch.get(loop).extent), tile, 1])
    if argument is not None:
        sch.annotate(loop, _ARGUMENT, argument)


def mark_token_store(sch: s_tir.Schedule, block: Block) -> None:
    """Say that a block stores tokens: its first axes are the sequence and the token in it.

    In a packed kernel its rows go to those of the sequence.
    """
    sch.annotate(block, _STORES, 1)


class Guards:
    """What is inserted in one kernel; `starts` is None in a kernel on tokens in place."""

    def __init__(self, func: tirx.PrimFunc) -> None:
        self.starts: tirx.Var | None = None
        self.sequences = 0
        self.rows_per_token = int((func.attrs or {}).get(ROWS_PER_TOKEN, 1))
        if func.attrs is not None and ROW_COUNT in func.attrs:
            starts = func.params[int(func.attrs[ROW_COUNT])]
            self.starts, self.sequences = starts, int(starts.shape[0]) - 1
        self.keys: list[tirx.Var] = []
        if func.attrs is not None and KEYS in func.attrs:
            self.keys = [func.params[int(place)] for place in func.attrs[KEYS]]
        self.sequence: tirx.Expr | None = None
        self.found = 0
        self.around: dict[tirx.Var, tirx.Expr] = {}
        for loop in nodes_of(func, tirx.For):
            if _SEQUENCES in loop.annotations:
                self.sequence = loop.loop_var // int(loop.annotations[_SEQUENCES])
            if _ROWS in loop.annotations:
                first, _tile = first_row(loop, loop.annotations[_ROWS])
                for inner in nodes_of(loop.body, tirx.For):
                    self.around[inner.loop_var] = first

    def start(self, sequence: tirx.Expr) -> tirx.Expr:
        """First row of a sequence."""
        return tirx.BufferLoad(self.starts, [sequence])

    def rows(self) -> tirx.Expr:
        """Rows in use."""
        tokens = self.start(tirx.const(self.sequences, "int32"))
        return tokens if self.rows_per_token == 1 else tokens * self.rows_per_token

    def length(self, sequence: tirx.Expr) -> tirx.Expr:
        """Tokens of a sequence."""
        return self.start(sequence + 1) - self.start(sequence)

    def _first_key(self, row: tirx.Expr, keys: tirx.Var) -> tirx.Expr:
        """Row of a key, from that where it would lie in place."""
        if self.sequence is None:
            raise ScheduleError(
                what="the rule marks no loop over sequences",
                where="the keys of packed attention",
                why="every sequence has its keys at other rows",
                todo="call ibert_tvm.schedules.row_guard.mark_sequence_loop in the rule",
            )
        length = int(keys.shape[0]) // self.sequences
        first = tirx.min(self.start(self.sequence), int(keys.shape[0]) - length)
        return row - self.sequence * length + first

    def load(self, load: ir.TensorLoad) -> ir.TensorLoad:
        """Move what is read of keys and values to the rows of the sequence."""
        if not any(load.source.same_as(keys) for keys in self.keys):
            return load
        row, *columns = load.indices
        return tirx.BufferLoad(load.source, [self._first_key(row, load.source), *columns])

    def match(self, match: s_tir.MatchBufferRegion) -> s_tir.MatchBufferRegion:
        """Move the region that an instruction reads of keys and values, likewise."""
        region = match.source
        if not any(region.source.same_as(keys) for keys in self.keys):
            return match
        rows, *columns = region.region
        moved = ir.Range.from_min_extent(self._first_key(rows.min, region.source), rows.extent)
        ranges = [moved, *columns]
        return s_tir.MatchBufferRegion(
            match.buffer, ir.TensorRegion(region.source, ranges, region.ty)
        )

    def loop(self, loop: tirx.For) -> tirx.For:
        """Guard a marked loop; remove the marks of any."""
        marks = {key: loop.annotations[key] for key in _LOOPS if key in loop.annotations}
        if not marks:
            return loop
        extent, body = loop.extent, loop.body
        if _ROWS_INSIDE in marks:
            rows, tile = (int(size) for size in marks[_ROWS_INSIDE])
            used = tirx.const(rows, "int32") if self.starts is None else self.rows()
            left = used - self.around[loop.loop_var]
            if tile == 1:
                extent = tirx.min(extent, left)
            else:  # A loop of unknown extent would have the memory of all rows planned in it.
                body = tirx.IfThenElse(loop.loop_var * tile < left, body, None)
        elif self.starts is not None and _SEQUENCES not in marks:
            ((key, mark),) = marks.items()
            first, tile = first_row(loop, mark)
            limit = self.rows() if key == _ROWS else self.length(self.sequence)
            if _ARGUMENT in loop.annotations:
                used = tirx.min(limit - first, tile)
                # Sums over the keys are products of one row, whatever the tile.
                body = with_argument(
                    body,
                    int(loop.annotations[_ARGUMENT]),
                    lambda rows: used if int(rows) == tile else rows,
                )
            body = tirx.IfThenElse(first < limit, body, None)
            self.found += 1
        rest = unmarked(loop, *_LOOPS, _ARGUMENT)
        return changed(loop, extent=extent, body=body, annotations=rest)

    def block(self, block: s_tir.SBlock) -> s_tir.SBlock:
        """Move what a marked block stores to the rows of its sequence."""
        if _STORES not in block.annotations:
            return block
        body, writes = block.body, block.writes
        if self.starts is not None:
            sequence, token = (axis.var for axis in block.iter_vars[:2])

            def move(store: tirx.BufferStore) -> tirx.Stmt:
                indices = [self.start(sequence) + token, *store.indices[1:]]
                moved = tirx.BufferStore(store.buffer, store.value, indices)
                return tirx.IfThenElse(token < self.length(sequence), moved, None)

            body = tvm_ffi.structural_map(body, (tirx.BufferStore, move))
            writes = [_whole(region) for region in writes]
        return changed(block, body=body, writes=writes, annotations=unmarked(block, _STORES))


def first_row(loop: tirx.For, mark: Sequence[int]) -> tuple[tirx.Expr, int]:
    """First row or token that an iteration of a marked loop works on, and how many there are."""
    tiles, tile, repeats = (int(size) for size in mark)
    place = loop.loop_var if repeats == 1 else loop.loop_var // repeats
    return (place if tiles * repeats == int(loop.extent) else place % tiles) * tile, tile


def _whole(region: ir.TensorRegion) -> ir.TensorRegion:
    """Region of all of a buffer."""
    ranges = [ir.Range(0, extent) for extent in region.source.ty.shape]
    return ir.TensorRegion(region.source, ranges, region.ty)


def rows_in_use(func: tirx.PrimFunc) -> tirx.Expr | None:
    """Rows of a kernel that hold a token, for rules that write kernels; None where all may."""
    guards = Guards(func)
    return None if guards.starts is None else guards.rows()


def with_blocks(
    func: tirx.PrimFunc, body: tirx.Stmt, units: int, shared: int, blocks: int = 1
) -> tirx.PrimFunc:
    """Give a kernel for a GPU its body; say which of its blocks work on rows in use.

    Parameters
    ----------
    func
        Kernel, packed or not.
    body
        Written by a rule.
    units, shared, blocks
        Units of work per row, how many of them lie together, and the blocks along x for those.
    """
    written = tirx.PrimFunc(func.params, body, func.ret_type, func.attrs)
    if ROW_COUNT not in (func.attrs or {}):
        return written
    units *= int(func.attrs.get(ROWS_PER_TOKEN, 1))
    return written.with_attr(BLOCKS, [units, shared, blocks])


def guard_rows(func: tirx.PrimFunc, name: str) -> tirx.PrimFunc:
    """Guard the loops that a rule marked, in a kernel that is told the rows in use.

    Parameters
    ----------
    func
        Scheduled kernel.
    name
        Its name, for messages.

    Returns
    -------
    tirx.PrimFunc
        Without marks.

    Raises
    ------
    ScheduleError
        If the kernel is told the rows and its rule marked no loop: it would work on rows without a
        token for nothing.
    """
    guards = Guards(func)
    rewrites = [
        (tirx.For, guards.loop),
        (s_tir.SBlock, guards.block),
        (ir.TensorLoad, guards.load),
        (s_tir.MatchBufferRegion, guards.match),
    ]
    guarded = tvm_ffi.structural_map(func, rewrites)
    if guards.starts is not None and not guards.found:
        raise ScheduleError(
            what="the rule marks no loop over rows",
            where=f"kernel {name}",
            why="a kernel on packed tokens skips the rows that hold none",
            todo="call ibert_tvm.schedules.row_guard.mark_row_loop in the rule",
        )
    return guarded
