"""The plan of calls for a batch."""

from __future__ import annotations

import pytest

from ibert_tvm.runtime.library import plan_calls
from ibert_tvm.runtime.metadata import FunctionRecord


def _plan(
    shapes: list[tuple[int, int]], batch: int, length: int, packed: bool = False
) -> list[tuple[int, int, int]]:
    functions = [FunctionRecord(f"main_b{b}_s{s}", b, s, packed=packed) for b, s in shapes]
    calls = plan_calls(functions, batch, length)
    assert [c.start for c in calls] == [sum(x.rows for x in calls[:i]) for i in range(len(calls))]
    assert sum(c.rows for c in calls) == batch
    return [(c.function.batch, c.function.seq_len, c.rows) for c in calls]


@pytest.mark.parametrize(
    ("shapes", "batch", "length", "expected"),
    [
        ([(1, 128)], 1, 5, [(1, 128, 1)]),
        ([(1, 32), (1, 128)], 1, 32, [(1, 32, 1)]),
        ([(1, 32), (1, 128)], 1, 33, [(1, 128, 1)]),
        ([(1, 128)], 3, 128, [(1, 128, 1)] * 3),
        # Padding 7 rows to 8 is cheaper than 7 calls only in calls: the tokens decide.
        ([(1, 128), (8, 128)], 7, 128, [(1, 128, 1)] * 7),
        ([(1, 128), (8, 128)], 8, 128, [(8, 128, 8)]),
        ([(8, 128), (1, 128)], 17, 100, [(8, 128, 8), (8, 128, 8), (1, 128, 1)]),
        ([(8, 128)], 9, 100, [(8, 128, 8), (8, 128, 1)]),
        # A short shape of a large batch beats the exact batch of a long one.
        ([(1, 128), (2, 32)], 1, 10, [(2, 32, 1)]),
    ],
)
def test_plan(
    shapes: list[tuple[int, int]], batch: int, length: int, expected: list[tuple[int, int, int]]
) -> None:
    assert _plan(shapes, batch, length) == expected


@pytest.mark.parametrize(
    ("shapes", "batch", "length", "expected"),
    [
        ([(1, 32), (1, 128)], 1, 32, [(1, 32, 1)]),
        # One call that leaves a row free, and not seven that read all weights each.
        ([(1, 128), (8, 128)], 7, 128, [(8, 128, 7)]),
        ([(1, 128), (8, 128)], 1, 128, [(1, 128, 1)]),
        ([(8, 128), (1, 128)], 17, 100, [(8, 128, 8), (8, 128, 8), (1, 128, 1)]),
        ([(1, 128), (2, 32)], 1, 10, [(2, 32, 1)]),
        ([(8, 32), (8, 128)], 3, 10, [(8, 32, 3)]),
    ],
)
def test_plan_of_functions_that_compute_no_padding(
    shapes: list[tuple[int, int]], batch: int, length: int, expected: list[tuple[int, int, int]]
) -> None:
    assert _plan(shapes, batch, length, packed=True) == expected
