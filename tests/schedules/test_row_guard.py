"""Guards of what a kernel does for rows without a token."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import s_tir, te, tirx

from ibert_tvm.schedules import ScheduleError
from ibert_tvm.schedules.row_guard import (
    ROW_COUNT,
    guard_rows,
    mark_inner_row_loop,
    mark_row_loop,
    mark_sequence_loop,
    mark_token_loop,
    mark_token_store,
)
from tests.snapshots import Messages

SEQUENCES, LENGTH, CHANNELS = 3, 8, 4
ROWS = SEQUENCES * LENGTH
UNTOUCHED = -7


def _doubled(counted: bool = True) -> tirx.PrimFunc:
    """Twice the rows of x, told where sequences start."""
    x = te.placeholder((ROWS, CHANNELS), "int32", name="x")
    starts = te.placeholder((SEQUENCES + 1,), "int32", name="starts")
    y = te.compute((ROWS, CHANNELS), lambda i, j: x[i, j] * 2, name="y")
    func = te.create_prim_func([x, starts, y])
    return func.with_attr(ROW_COUNT, 1) if counted else func


def _run(func: tirx.PrimFunc, starts: list[int]) -> np.ndarray:
    library = tvm.compile(tvm.IRModule({"main": func}), target="llvm")
    x = np.arange(ROWS * CHANNELS, dtype="int32").reshape(ROWS, CHANNELS)
    result = tvm.runtime.tensor(np.full_like(x, UNTOUCHED))
    library["main"](tvm.runtime.tensor(x), tvm.runtime.tensor(np.array(starts, "int32")), result)
    return result.numpy()


def _rows(count: int) -> np.ndarray:
    """What `_doubled` gives if it stops after some rows."""
    y = np.arange(ROWS * CHANNELS, dtype="int32").reshape(ROWS, CHANNELS) * 2
    y[count:] = UNTOUCHED
    return y


@pytest.mark.parametrize(("tile", "rows", "computed"), [(1, 5, 5), (4, 5, 8), (4, 8, 8), (4, 0, 0)])
def test_tiles_without_a_token_are_skipped(tile: int, rows: int, computed: int) -> None:
    sch = s_tir.Schedule(_doubled())
    row, _ = sch.get_loops(sch.get_sblock("y"))
    outer, _ = sch.split(row, [None, tile])
    mark_row_loop(sch, outer, tile)
    func = guard_rows(sch.mod["main"], "y")
    assert "ibert.rows" not in func.script()
    np.testing.assert_array_equal(_run(func, [0, 2, 2, rows]), _rows(computed))


@pytest.mark.representatives(2)
@pytest.mark.parametrize(
    ("tile", "rows", "computed"), [(1, 5, 5), (1, 9, 9), (2, 5, 6), (2, 12, 12)]
)
def test_tiles_of_a_block_of_rows_without_a_token_are_skipped(
    tile: int, rows: int, computed: int
) -> None:
    for counted in (True, False):
        sch = s_tir.Schedule(_doubled(counted))
        row, _ = sch.get_loops(sch.get_sblock("y"))
        blocks, inner = sch.split(row, [None, 8])
        tiles = inner if tile == 1 else sch.split(inner, [None, tile])[0]
        mark_row_loop(sch, blocks, 8)
        mark_inner_row_loop(sch, tiles, ROWS, tile)
        func = guard_rows(sch.mod["main"], "y")
        assert "ibert.rows" not in func.script()
        expected = _rows(computed if counted else ROWS)
        np.testing.assert_array_equal(_run(func, [0, 2, 2, rows]), expected)


def test_a_loop_over_columns_and_rows_knows_its_rows() -> None:
    sch = s_tir.Schedule(_doubled())
    row, column = sch.get_loops(sch.get_sblock("y"))
    tiles, inner = sch.split(row, [None, 4])
    sch.reorder(column, tiles, inner)
    mark_row_loop(sch, sch.fuse(column, tiles), 4, ROWS // 4)
    func = guard_rows(sch.mod["main"], "y")
    np.testing.assert_array_equal(_run(func, [0, 1, 2, 9]), _rows(12))


def test_a_kernel_that_is_not_told_computes_everything() -> None:
    sch = s_tir.Schedule(_doubled(counted=False))
    row, _ = sch.get_loops(sch.get_sblock("y"))
    mark_row_loop(sch, row)
    func = guard_rows(sch.mod["main"], "y")
    assert "if " not in func.script() and "ibert.rows" not in func.script()
    np.testing.assert_array_equal(_run(func, [0, 0, 0, 0]), _rows(ROWS))


def test_a_rule_that_marks_nothing_is_an_error(messages: Messages) -> None:
    with messages.raises(ScheduleError):
        guard_rows(_doubled(), "main_b1_s4_check")


@pytest.mark.parametrize("counted", [True, False])
def test_results_of_a_sequence_go_to_its_rows(counted: bool) -> None:
    x = te.placeholder((ROWS, CHANNELS), "int32", name="x")
    starts = te.placeholder((SEQUENCES + 1,), "int32", name="starts")

    def row(sequence: tirx.Var, token: tirx.Var) -> tirx.Expr:
        at = starts[sequence] + token if counted else sequence * LENGTH + token
        return tirx.min(at, ROWS - 1)

    shape = (SEQUENCES, 2, LENGTH, CHANNELS // 2)
    plus = te.compute(shape, lambda b, h, s, c: x[row(b, s), h * 2 + c] + 1, name="plus")
    order = (SEQUENCES, LENGTH, 2, CHANNELS // 2)
    stored = te.compute(order, lambda b, s, h, c: plus[b, h, s, c] * 2, name="stored")
    sch = s_tir.Schedule(te.create_prim_func([x, starts, stored]))
    sch.transform_layout(
        sch.get_sblock("stored"), ("write", 0), lambda b, s, h, c: (b * LENGTH + s, h * 2 + c)
    )
    func = sch.mod["main"].with_attr(ROW_COUNT, 1) if counted else sch.mod["main"]
    sch = s_tir.Schedule(func)
    batch, head, token, _ = sch.get_loops(sch.get_sblock("plus"))
    outer, _ = sch.split(token, [None, 4])
    sequence = sch.fuse(batch, head)
    mark_sequence_loop(sch, sequence, 2)
    mark_token_loop(sch, outer, 4)
    block = sch.get_sblock("stored")
    sch.reverse_compute_at(block, outer, preserve_unit_loops=True)
    mark_token_store(sch, block)
    result = _run(guard_rows(sch.mod["main"], "stored"), [0, 3, 3, 8])
    expected = _rows(ROWS) + 2
    if counted:
        expected[8:] = UNTOUCHED
    np.testing.assert_array_equal(result, expected)
