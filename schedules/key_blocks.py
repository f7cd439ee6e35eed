"""Skipping blocks of keys that no query of a tile sees.

Attention works on a tile of queries at a time. Where a window limits how far a key may lie from its
query, or where tokens are packed and a sequence has fewer keys than the bucket, a tile sees a run
of the keys; the others weigh exactly 0. Rules split their loops over keys into blocks and say so,
and the loops over blocks then begin and end with those that hold a key some query of the tile sees.
"""

from __future__ import annotations

import tvm_ffi
from tvm import s_tir, tirx

from .nodes import Block, Loop, changed, nodes_of, unmarked, with_argument
from .row_guard import TOKENS, Guards, first_row

WINDOW = "ibert.window"
"""Attribute of an attention kernel that emission sets: how far before its query and behind it a key
may lie, and the keys of a sequence without padding. In a kernel without it, all keys may count."""
_KEYS = "ibert.key_blocks"
_ARGUMENT = "ibert.key_argument"
WORK = "ibert.macs"
"""Attribute of a kernel: its multiplications."""

LARGEST_BLOCK = 32
"""Keys. A window of 128 keys and 8 queries in blocks of 32 makes 160 to 192 keys."""
LARGEST_BLOCK_OF_CALLS = 4
"""The same where a microkernel takes any number of blocks at once, and tiles have few queries.
Vectors without a window go over large blocks all the same: only the last one has keys in vain.
"""


def key_block(
    func: tirx.PrimFunc, keys: int, step: int, largest: int = LARGEST_BLOCK
) -> int | None:
    """Keys of a block, where a kernel has keys to skip.

    Parameters
    ----------
    func
        Unscheduled kernel.
    keys
        Its padded keys, a multiple of `step`.
    step
        What a block is to be a multiple of.
    largest
        Keys that it has at most, unless `step` is more.

    Returns
    -------
    int or None
        None where every tile of queries sees all keys, or all are one block.
    """
    if func.attrs is None or WINDOW not in func.attrs:
        return None
    sizes = [size for size in range(step, max(largest, step) + 1, step) if keys % size == 0]
    # Blocks of one key, which a prime number of keys would have, are no blocks.
    return sizes[-1] if 1 < sizes[-1] < keys else None


def windowed(func: tirx.PrimFunc) -> bool:
    """Whether it depends on the query which keys it may see."""
    if func.attrs is None or WINDOW not in func.attrs:
        return False
    before, after, length = (int(size) for size in func.attrs[WINDOW])
    return min(before, after) < length - 1


def mark_key_loop(sch: s_tir.Schedule, loop: Loop, block: int, argument: int | None = None) -> None:
    """Say that iteration i of a loop works on the keys from ``i * block``, `block` of them.

    Where the kernel is `windowed`, the loop must lie inside of one that
    `ibert_tvm.schedules.row_guard.mark_token_loop` marks.

    Parameters
    ----------
    sch
        Schedule.
    loop
        The loop.
    block
        Keys of a block.
    argument
        Of a loop that holds a call of a function in C and nothing else: the place of the argument
        that counts keys, which lie together. One call takes all blocks then.
    """
    sch.annotate(loop, _KEYS, block)
    if argument is not None:
        sch.annotate(loop, _ARGUMENT, argument)


def split_keys(sch: s_tir.Schedule, block: Block, size: int, inner: int = 1) -> None:
    """Put a marked loop over blocks of `size` keys round the rows of a tile.

    The loop over keys is the last but `inner` - 1 of those round `block`, and that over rows comes
    before it.
    """
    rows, keys, *depth = sch.get_loops(block)[-1 - inner :]
    blocks, key = sch.split(keys, [None, size])
    sch.reorder(blocks, rows, key, *depth)
    mark_key_loop(sch, blocks, size)


def split_sum(sch: s_tir.Schedule, block: Block, size: int) -> None:
    """Put a marked loop over blocks of `size` keys round a sum over keys, the last loop."""
    blocks, _key = sch.split(sch.get_loops(block)[-1], [None, size])
    sch.decompose_reduction(block, blocks)
    mark_key_loop(sch, blocks, size)


def skip_key_blocks(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Let marked loops go over the blocks that hold a key which a query of the tile may see.

    Places of packed tokens rise at least as fast as their rows, so rows that are too far apart have
    places that are, too; and behind the rows of a sequence there is no key of it.

    Parameters
    ----------
    func
        Scheduled kernel, with the marks of `ibert_tvm.schedules.row_guard`.

    Returns
    -------
    tirx.PrimFunc
        Without marks of this module; its attribute ``ibert.macs`` counts the keys that are left, of
        sequences without padding.
    """
    loops = nodes_of(func, tirx.For)
    sizes = {int(loop.annotations[_KEYS]) for loop in loops if _KEYS in loop.annotations}
    if not sizes:
        return func
    (block,) = sizes
    (tokens,) = (loop for loop in loops if TOKENS in loop.annotations)
    query, tile = first_row(tokens, tokens.annotations[TOKENS])
    before, after, length = (int(size) for size in func.attrs[WINDOW])
    guards = Guards(func)
    # Variables, since a sum that starts at a place computed from the tile has its buffer for all
    # tiles: TVM takes the tile's loop for one of those that it sums over.
    first, count = (tirx.Var(name, "int32") for name in ("first_block", "blocks_of_keys"))
    if before >= length - 1:  # the first of all, which C must not be told in vain
        first = tirx.const(0, "int32")

    def seen(query: tirx.Expr, end: tirx.Expr | int) -> tuple[tirx.Expr, tirx.Expr]:
        """First block that a tile of queries sees, of keys up to `end`, and how many."""
        low = tirx.max(query - before, 0)
        high = tirx.min(query + (tile - 1 + after), end - 1)
        start = tirx.truncdiv(low, block)
        return start, tirx.truncdiv(high, block) + 1 - start

    inside = [loop.loop_var for loop in nodes_of(tokens.body, tirx.For)]

    def skip(loop: tirx.For) -> tirx.For:
        end = length if guards.starts is None else guards.length(guards.sequence)
        if TOKENS in loop.annotations:
            values = zip((first, count), seen(query, end), strict=True)
            binds = [tirx.Bind(var, value) for var, value in values if isinstance(var, tirx.Var)]
            return changed(loop, body=tirx.SeqStmt([*binds, loop.body]))
        if _KEYS not in loop.annotations:
            return loop
        rest = unmarked(loop, _KEYS, _ARGUMENT)
        place, blocks = first, count
        if not any(loop.loop_var.same_as(var) for var in inside):  # of all queries of a sequence
            place, blocks = tirx.const(0, "int32"), tirx.truncdiv(end - 1, block) + 1
        if _ARGUMENT not in loop.annotations:
            return changed(loop, min=place, extent=blocks, annotations=rest)
        # Let the call of a block take all blocks.
        place_of_keys = int(loop.annotations[_ARGUMENT])
        body = with_argument(loop.body, place_of_keys, lambda keys: keys * blocks)
        one = tirx.const(1, "int32")
        return changed(loop, min=place, extent=one, body=body, annotations=rest)

    func = tvm_ffi.structural_map(func, (tirx.For, skip))
    pairs = 0
    for place in range(0, length, tile):
        start, number = (int(x) for x in seen(tirx.const(place, "int32"), length))
        keys = min((start + number) * block, length) - start * block
        pairs += min(tile, length - place) * keys
    return func.with_attr(WORK, int(func.attrs[WORK]) * pairs // length**2)
