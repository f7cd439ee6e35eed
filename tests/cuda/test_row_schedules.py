"""How row operations of a GPU are shared out, and what their stores save."""

from __future__ import annotations

import itertools

import pytest
from tvm import tirx

from ibert_tvm.relay_passes.spec.q15 import saturate
from ibert_tvm.schedules.cuda.elementwise import run_width
from ibert_tvm.schedules.cuda.rows import RowTile, row_tile
from ibert_tvm.schedules.cuda.runs import unpacked, unsaturated
from ibert_tvm.schedules.stages import NotElementwise

T4, H100 = 40, 132


@pytest.mark.parametrize(
    ("rows", "channels", "multiprocessors", "tile"),
    [
        # One text: three warps take 8 channels per thread, and none is idle.
        (128, 768, T4, RowTile(8, 3, 1)),
        (128, 384, T4, RowTile(4, 3, 1)),
        # Many: a warp for a row, which needs no barrier, and four rows in a block.
        (2048, 768, T4, RowTile(8, 1, 4)),
        (2048, 384, H100, RowTile(4, 1, 4)),
        # Rows that one warp would not hold in registers.
        (2048, 4096, T4, RowTile(8, 4, 1)),
        (1, 7, T4, RowTile(1, 1, 1)),
    ],
)
def test_rows(rows: int, channels: int, multiprocessors: int, tile: RowTile) -> None:
    assert row_tile(rows, channels, multiprocessors) == tile


@pytest.mark.parametrize("multiprocessors", [T4, H100])
def test_every_row_fits_the_threads_and_their_registers(multiprocessors: int) -> None:
    for rows, channels in itertools.product((1, 100, 3000), (1, 31, 100, 130, 768, 5120, 8192)):
        tile = row_tile(rows, channels, multiprocessors)
        assert channels % tile.width == 0
        covered = tile.steps(channels) * tile.width * tile.warps * 32
        assert channels <= covered
        assert tile.steps(channels) * tile.width <= 32
        assert tile.warps * 32 * tile.rows <= 1024


def test_rows_that_no_block_holds_are_left_to_another_rule() -> None:
    with pytest.raises(NotElementwise) as caught:
        row_tile(1, 40000, T4)
    assert str(caught.value) == "a block does not hold 40000 channels in registers"


@pytest.mark.parametrize(
    ("entries", "channels", "itemsizes", "width"),
    [
        (2048 * 768, 768, [1, 1], 16),  # 16 bytes of int8
        (2048 * 768, 768, [2, 1], 16),  # and two accesses of int16
        (2048 * 768, 768, [4, 4], 4),
        (2048 * 768, 768, [8, 1], 4),
        (128 * 384, 384, [2, 1], 4),  # few entries: more threads
        (128 * 130, 130, [1, 1], 2),
        (128 * 101, 101, [1, 1], 1),
    ],
)
def test_runs_of_channels(entries: int, channels: int, itemsizes: list[int], width: int) -> None:
    assert run_width(entries, channels, itemsizes, T4) == width


X = tirx.Var("x", "int32")


@pytest.mark.parametrize(
    ("value", "dtype", "left"),
    [
        (tirx.max(saturate(X, 8), -127), "int8", "T.max(x, -127)"),
        (tirx.max(tirx.min(X, 127), -127), "int8", "T.max(x, -127)"),
        (tirx.min(tirx.max(X, -128), 127), "int8", "x"),
        (tirx.min(tirx.max(X, 0), 255), "uint8", "x"),
        (tirx.min(tirx.max(X, 3), 200), "uint8", "T.min(T.max(x, 3), 200)"),
        (tirx.min(tirx.max(X, -200), 300), "int8", "x"),
        (saturate(X, 9), "int8", "x"),
        (saturate(X, 7), "int8", "T.ibert_saturate(x, 7)"),
        (saturate(X, 8), "int16", "T.ibert_saturate(x, 8)"),
        (tirx.max(X + 1, X), "int8", "T.max(x + 1, x)"),
    ],
)
def test_clamps_that_a_store_makes_are_left_out(value: tirx.Expr, dtype: str, left: str) -> None:
    assert str(unsaturated(value, dtype)) == left


def test_only_what_narrows_is_unpacked() -> None:
    assert unpacked(tirx.Cast("int8", X)).same_as(X)
    wide = tirx.Cast("int64", X)
    assert unpacked(wide).same_as(wide)
