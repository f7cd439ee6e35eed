"""What can be decided about kernels for GPUs, what the model knows of it, what is stored."""

from __future__ import annotations

import dataclasses

import pytest
import tvm
import tvm_ffi
from tvm import te, tirx

from ibert_tvm.schedules import schedule_kernel
from ibert_tvm.schedules.cuda.attention_tile import AttentionTile
from ibert_tvm.schedules.cuda.gemm_tile import GemmTile
from ibert_tvm.schedules.tiles import LinearTile, Tile, has_tile, with_tile
from ibert_tvm.schedules.tuning import (
    DatabaseError,
    Search,
    TuningDatabase,
    default_decisions,
    tile_space,
)
from ibert_tvm.schedules.tuning.database import tile_from_json
from ibert_tvm.targets import get_target
from tests.cuda.attention_kernels import AttentionCase, attention_kernel
from tests.cuda.linear_kernels import LinearCase, linear_function
from tests.snapshots import Messages

_TARGETS = ("t4", "a100")


def _linear(target: str) -> tirx.PrimFunc:
    return linear_function(get_target(target), LinearCase("short", 128, 384, 1536))


def _attention(target: str) -> tirx.PrimFunc:
    return attention_kernel(get_target(target), AttentionCase(seq_len=128, heads=12)).func


@pytest.mark.parametrize("make", [_linear, _attention])
@pytest.mark.parametrize("target", _TARGETS)
def test_the_default_comes_first(target: str, make) -> None:
    description = get_target(target)
    func = make(target)
    space = tile_space(func, description)
    assert space[0] == default_decisions(func, description)
    assert len(space) > 8
    assert len(set(space)) == len(space) <= 256
    untuned = schedule_kernel("kernel", func, description)
    tuned = schedule_kernel("kernel", with_tile(func, space[0]), description)
    tvm.ir.assert_structural_equal(untuned, tuned)
    other = schedule_kernel("kernel", with_tile(func, space[-1]), description)
    assert not has_tile(other)
    assert not tvm_ffi.structural_equal(untuned, other)


def test_other_kernels_have_no_decisions() -> None:
    target = get_target("t4")
    x = te.placeholder((4, 8), "int32", name="x")
    func = te.create_prim_func([x, te.compute((4, 8), lambda i, j: x[i, j] * 2, name="doubled")])
    assert tile_space(func, target) == []
    assert default_decisions(func, target) is None


@pytest.mark.slow
def test_the_model_learns_from_decisions() -> None:
    target = get_target("t4")
    func = _linear("t4")
    search = Search("fc", func, target, tile_space(func, target))

    def cost(tile: Tile) -> float:  # what loads least per product
        assert isinstance(tile, GemmTile)
        return 1e-3 / tile.block_rows

    tried: set[Tile] = set()
    for _ in range(3):
        candidates = search.propose(8, tried)
        assert tried.isdisjoint(candidate.tile for candidate in candidates)
        tried |= {candidate.tile for candidate in candidates}
        search.learn([(candidate, [cost(candidate.tile)]) for candidate in candidates])
    left = [tile for tile in search.space if tile not in tried]
    average = sum(map(cost, left)) / len(left)
    chosen = [candidate.tile for candidate in search.propose(4, tried)[:3]]
    assert sum(map(cost, chosen)) / len(chosen) < average
    assert search.impossible == {}


def test_decisions_that_no_rule_takes_are_not_tried() -> None:
    target = get_target("t4")
    func = _linear("t4")
    search = Search("fc", func, target, tile_space(func, target))
    assert search.candidate(LinearTile(1, 1)) is None
    (why,) = search.impossible.values()
    assert why == (
        "they are column_block, prefetch, row_block, rows, rows_outermost, unroll, vectors"
    )


def test_stored_decisions_are_read() -> None:
    for tile in (GemmTile(64, 64, 32, 32), AttentionTile(2, 1, 32, 4, True, False)):
        assert tile_from_json(dataclasses.asdict(tile)) == tile
    numbers = {**dataclasses.asdict(AttentionTile(2, 1, 32, 4, True, False)), "held": 1}
    with pytest.raises(ValueError, match="the decisions on a kernel are whole numbers rows"):
        tile_from_json(numbers)


def test_measurements_are_of_one_architecture(tmp_path, messages: Messages) -> None:
    TuningDatabase.create(tmp_path / "db", get_target("t4"))
    assert TuningDatabase.open(tmp_path / "db", get_target("t4")).trials == []
    assert TuningDatabase.open(tmp_path / "db", get_target("cuda:sm_75")).trials == []
    with messages.raises(DatabaseError):
        TuningDatabase.open(tmp_path / "db", get_target("a100"))
