"""Kernels in pieces: what may be cut, and what must not."""

from __future__ import annotations

import pytest
from tvm.script import from_source

from ibert_tvm.targets import TargetError
from ibert_tvm.targets.aot.model import KernelParameter
from ibert_tvm.targets.aot.pieces import SECTOR, Cut, Rows, cut_kernel

# Two rows of 64 entries times 128 columns of weights, 8 KiB.
_COLUMNS = """
@T.prim_func(private=True, s_tir=True)
def kernel(x: T.Buffer((128,), "int8"), w: T.Buffer((8192,), "int8"), y: T.Buffer((256,), "int32")):
    {before}
    for n in range({extent}):
        total = T.alloc_buffer((1,), "int32")
        total[0] = {start}
        for k in range(64):
            total[0] = total[0] + T.Cast("int32", x[{row} * 64 + k]) * T.Cast("int32", w[{weight}])
        y[{place}] = total[0]{result}
    {after}
"""
_PLAIN = {
    "before": "T.evaluate(0)",
    "after": "T.evaluate(0)",
    "extent": "256",
    "start": "0",
    "row": "(n % 2)",
    "weight": "n // 2 * 64 + k",
    "place": "n % 2 * 128 + n // 2",
    "result": "",
}

_ROWS = """
@T.prim_func(private=True, s_tir=True)
def kernel(ids: T.Buffer((8,), "int32"), table: T.Buffer((8192,), "int8"),
           y: T.Buffer((512,), "int32")):
    for i in range(8):
        for k in range(64):
            y[i * 64 + k] = T.Cast("int32", table[{place}]){result}
"""


def _cut(source: str, count: int, limit: int | None = 2 * SECTOR) -> Cut:
    entries = {128: "int8", 8192: "int8", 8: "int32"}
    parameters = [
        KernelParameter(entries.get(n, "int32"), n, n in (256, 512), 16)
        for n in ((128, 8192, 256) if count == 128 else (8, 8192, 512))
    ]
    return cut_kernel(from_source(source), parameters, {1}, limit, 16)[1]


def test_a_loop_of_columns_and_rows_is_cut_between_columns() -> None:
    source = _COLUMNS.format(**_PLAIN)
    assert _cut(source, 128) == Cut(8, (0, 1024, 16), {})
    assert _cut(source, 128, None) == Cut(1, (0, 0, 0), {})
    function, cut = cut_kernel(
        from_source(source),
        [KernelParameter("int8", n, False, 16) for n in (128, 8192, 256)],
        {1},
        SECTOR,
        16,
    )
    assert cut.pieces == 16 and "range(16)" in function.script()


@pytest.mark.representatives(2)
@pytest.mark.parametrize(
    "other",
    [
        {"after": "y[0] = 1"},  # the first piece's result would be lost
        {"result": " + n"},  # depends on which column it is
        {"before": "y[3] = T.Cast('int32', w[7])"},  # reads weights of another piece
        {"weight": "n // 2 * 63 + k"},  # parts overlap
        {"weight": "T.max(n // 2 - 1, 0) * 64 + k"},  # not the same step everywhere
        {"weight": "n * n % 128 * 64 + k"},
        {"weight": "n // 2 * 64 + (k + 1)"},  # reads one entry of the next column
        {"start": "T.if_then_else(n < 128, 0, 1)"},
    ],
)
def test_what_is_not_proved_is_not_cut(other: dict[str, str]) -> None:
    with pytest.raises(TargetError, match="too small"):
        _cut(_COLUMNS.format(**{**_PLAIN, **other}), 128)


def test_sums_over_columns_are_not_cut() -> None:
    source = """
@T.prim_func(private=True, s_tir=True)
def kernel(x: T.Buffer((128,), "int8"), w: T.Buffer((8192,), "int8"), y: T.Buffer((256,), "int32")):
    total = T.alloc_buffer((1,), "int32")
    total[0] = 0
    for n in range(128):
        for k in range(64):
            total[0] = total[0] + T.Cast("int32", w[n * 64 + k])
        y[n] = total[0]
"""
    with pytest.raises(TargetError, match="too small"):
        _cut(source, 128)


@pytest.mark.representatives(2)
@pytest.mark.parametrize(
    ("place", "rows"),
    [
        ("T.max(T.min(ids[i], 127), 0) * 64 + k", True),
        ("ids[i] * 64 + k", True),
        ("T.max(T.min(ids[i], 100), 0) * 64 + k", False),  # keeps numbers to other rows
        ("(ids[i] + 1) * 64 + k", False),
        ("ids[i] * 64 + k + 1", False),
        ("ids[i] * ids[i] + k", False),
        ("ids[i] * 100 + k", False),
    ],
)
def test_rows_of_a_table(place: str, rows: bool) -> None:
    source = _ROWS.format(place=place, result="")
    if rows:
        assert _cut(source, 8) == Cut(1, (0, 0, 0), {1: Rows(0, 128, 64)})
    else:
        with pytest.raises(TargetError, match="too small"):
            _cut(source, 8)
    # What else reads the numbers would get those of the rows that were fetched.
    with pytest.raises(TargetError, match="too small"):
        _cut(_ROWS.format(place=place, result=" + ids[i]"), 8)
