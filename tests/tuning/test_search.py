"""What is measured next: the default first, then what the cost model likes, nothing twice."""

from __future__ import annotations

import sys

import pytest

from ibert_tvm.common.extras import MissingExtraError
from ibert_tvm.schedules.tiles import LinearTile
from ibert_tvm.schedules.tuning import Search, tile_space
from ibert_tvm.targets import get_target
from tests.snapshots import Messages

from .test_tiles import linear

TARGET = get_target("x86-64")


def _search(seed: int = 0) -> Search:
    func, _ = linear(TARGET)
    return Search("fc", func, TARGET, tile_space(func, TARGET), seed)


@pytest.mark.slow
def test_the_default_comes_first_and_nothing_twice() -> None:
    search = _search()
    first = search.propose(3, set())
    assert first[0].tile == search.space[0]
    tried = {candidate.tile for candidate in first}
    assert len(tried) == 3
    second = search.propose(3, tried)
    assert tried.isdisjoint(candidate.tile for candidate in second)
    assert search.propose(5, set(search.space)) == []


@pytest.mark.slow
def test_the_same_seed_gives_the_same_search() -> None:
    tiles = [
        [candidate.tile for candidate in _search(seed).propose(4, set())] for seed in (1, 1, 2)
    ]
    assert tiles[0] == tiles[1] != tiles[2]


@pytest.mark.slow
def test_the_model_learns_what_is_fast() -> None:
    search = _search()

    def cost(tile: LinearTile) -> float:  # wide register tiles are what this machine likes
        return 1e-3 / (tile.rows * tile.vectors)

    tried: set[LinearTile] = set()
    for _ in range(4):
        candidates = search.propose(8, tried)
        tried |= {candidate.tile for candidate in candidates}  # type: ignore[misc]
        search.learn([(c, [cost(c.tile)] * 2) for c in candidates])  # type: ignore[arg-type]
    left = [tile for tile in search.space if tile not in tried]
    average = sum(cost(tile) for tile in left) / len(left)  # type: ignore[arg-type]
    chosen = search.propose(4, tried)[:3]  # the last of a round is chosen without the model
    assert sum(cost(c.tile) for c in chosen) / len(chosen) < average  # type: ignore[arg-type]


def test_stock_intrinsics_stay_out() -> None:
    before = "tvm.s_tir.tensor_intrin" in sys.modules
    _search()
    assert ("tvm.s_tir.tensor_intrin" in sys.modules) == before


def test_without_xgboost(monkeypatch: pytest.MonkeyPatch, messages: Messages) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with messages.raises(MissingExtraError):
        _search()
