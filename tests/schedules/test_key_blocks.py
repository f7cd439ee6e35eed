"""Which blocks of keys a tile of queries goes over, and how many multiplications are left."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import s_tir, te, tirx

from ibert_tvm.relay_passes.dialect.heads import UNBOUNDED
from ibert_tvm.schedules import schedule_kernel
from ibert_tvm.schedules.key_blocks import (
    LARGEST_BLOCK,
    LARGEST_BLOCK_OF_CALLS,
    WINDOW,
    key_block,
    skip_key_blocks,
    split_keys,
)
from ibert_tvm.schedules.row_guard import ROW_COUNT, guard_rows, mark_sequence_loop, mark_token_loop
from ibert_tvm.targets import get_target
from tests.cuda.attention_kernels import AttentionCase, attention_kernel

SEQUENCES, QUERIES, KEYS, TILE, BLOCK = 2, 12, 16, 4, 4


def visited(before: int, after: int, starts: list[int] | None = None) -> np.ndarray:
    """Pairs [sequences, tiles, blocks] that a kernel computes, of those that it could."""
    told = te.placeholder((SEQUENCES + 1,), "int32", name="starts")
    shape = (SEQUENCES, QUERIES, KEYS)
    pairs = te.compute(shape, lambda b, i, j: tirx.const(1, "int32"), name="pairs")
    func = te.create_prim_func([told, pairs]).with_attr(WINDOW, [before, after, KEYS - 1])
    func = func.with_attr("ibert.macs", 100)
    sch = s_tir.Schedule(func if starts is None else func.with_attr(ROW_COUNT, 0))
    block = sch.get_sblock("pairs")
    sequence, query, _key = sch.get_loops(block)
    mark_sequence_loop(sch, sequence)
    tiles, _ = sch.split(query, [None, TILE])
    mark_token_loop(sch, tiles, TILE)
    split_keys(sch, block, BLOCK)
    func = guard_rows(skip_key_blocks(sch.mod["main"]), "pairs")
    assert "ibert.key_blocks" not in func.script()
    result = tvm.runtime.tensor(np.zeros(shape, "int32"))
    first = np.array([0] * (SEQUENCES + 1) if starts is None else starts, "int32")
    tvm.compile(tvm.IRModule({"main": func}), target="llvm")["main"](
        tvm.runtime.tensor(first), result
    )
    blocks = result.numpy().reshape(SEQUENCES, QUERIES // TILE, TILE, KEYS // BLOCK, BLOCK)
    assert (blocks.min((2, 4)) == blocks.max((2, 4))).all()
    return blocks[:, :, 0, :, 0]


@pytest.mark.parametrize(
    ("keys", "step", "size"), [(17, 1, None), (18, 1, 3), (16, 1, 4), (20, 4, 4), (4, 4, None)]
)
def test_blocks_have_more_than_one_key_and_not_all(keys: int, step: int, size: int | None) -> None:
    func = tirx.PrimFunc([], tirx.Evaluate(0)).with_attr(WINDOW, [1, 1, keys])
    assert key_block(func, keys, step, LARGEST_BLOCK_OF_CALLS) == size


@pytest.mark.parametrize(
    ("window", "expected"),
    [
        ((15, 15), ["1111", "1111", "1111"]),
        ((15, 0), ["1000", "1100", "1110"]),
        ((0, 15), ["1111", "0111", "0011"]),
        ((1, 0), ["1000", "1100", "0110"]),
        ((4, 1), ["1100", "1110", "0111"]),
    ],
    ids=str,
)
def test_a_tile_sees_the_blocks_of_its_window(window: tuple[int, int], expected: list[str]) -> None:
    blocks = visited(*window)
    for sequence in blocks:
        assert ["".join(map(str, tile)) for tile in sequence] == expected


def test_packed_sequences_end_with_their_last_key() -> None:
    blocks = visited(15, 15, [0, 3, 12])
    assert ["".join(map(str, tile)) for tile in blocks[0]] == ["1000", "0000", "0000"]
    assert ["".join(map(str, tile)) for tile in blocks[1]] == ["1110", "1110", "1110"]


@pytest.mark.slow
@pytest.mark.representatives(1)
@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("x86-avx512-vnni", LARGEST_BLOCK),
        ("cortex-m55", 16),
        ("cortex-m4", LARGEST_BLOCK_OF_CALLS),
        ("cortex-m3", LARGEST_BLOCK_OF_CALLS),
    ],
)
@pytest.mark.parametrize(("before", "after"), [(UNBOUNDED, 0), (20, 9), (UNBOUNDED, UNBOUNDED)])
def test_the_multiplications_that_are_computed_are_counted(
    before: int, after: int, name: str, size: int
) -> None:
    target, case = get_target(name), AttentionCase(seq_len=128)
    case = replace(case, before=before, after=after)
    func = attention_kernel(target, case, evaluated=False).func
    scheduled = schedule_kernel("attention", func, target)
    distance = np.arange(128) - np.arange(128)[:, None]
    seen = (distance >= -before) & (distance <= after)
    tile = int(func.attrs["ibert.row_tile"])
    blocks = seen.reshape(128 // tile, tile, 128 // size, size).any((1, 3))
    pairs = int(blocks.sum()) * tile * size
    assert int(scheduled.attrs["ibert.macs"]) == 2 * pairs * case.heads * case.head_dim


@pytest.mark.representatives(1)
@pytest.mark.parametrize("name", ["x86-64-v3", "cortex-m4", "cortex-m55"])
def test_sums_over_blocks_are_kept_for_one_tile(name: str) -> None:
    """The tile's loop is none of those that are summed over."""
    target, case = get_target(name), AttentionCase(seq_len=64, before=4, after=4)
    func = attention_kernel(target, case, evaluated=False).func
    tile = int(func.attrs["ibert.row_tile"])
    scheduled = schedule_kernel("attention", func, target).with_attr("global_symbol", "main")
    passes = [
        s_tir.transform.CanonicalizeLoop(),
        s_tir.transform.LowerInitBlock(),
        s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
        s_tir.transform.ConvertBlocksToOpaque(),
        s_tir.transform.CompactBufferAllocation(),
    ]
    lowered = tvm.transform.Sequential(passes)(tvm.IRModule({"main": scheduled}))["main"]
    sizes = {}

    def note(block: s_tir.SBlock) -> None:
        for buffer in block.alloc_buffers:
            sizes[buffer.name] = int(np.prod([int(size) for size in buffer.ty.shape]))

    tvm_ffi.structural_walk(lowered, (s_tir.SBlock, note))
    assert sizes["context"] == tile * case.head_dim
    assert sizes["row_sum"] == sizes["row_max"] == tile
