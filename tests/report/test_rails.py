"""Lanes of values."""

from __future__ import annotations

from typing import Any

from ibert_tvm.report.page import MOST_LANES, Rail, draw_rails


def _step(name: str, *reads: str) -> dict[str, Any]:
    return {"name": name, "operands": [{"value": value} for value in reads]}


def test_a_value_runs_from_where_it_is_made_to_the_last_that_reads_it() -> None:
    steps = [_step("a", "ids"), _step("q", "a"), _step("k", "a"), _step("s", "q", "k")]
    steps += [_step("sum", "s", "a"), _step("unread", "sum")]
    assert draw_rails(steps, ["sum"]) == [
        Rail(0, (), (), True),
        Rail(1, (0,), (0,), True),
        Rail(2, (0, 1), (0,), True),
        Rail(1, (0,), (1, 2), True),
        Rail(0, (), (0, 1), True),
        Rail(1, (0,), (0,), False),
    ]


def test_more_values_than_lanes_are_not_drawn() -> None:
    many = [_step(str(number)) for number in range(MOST_LANES + 5)]
    rails = draw_rails([*many, _step("all", *(step["name"] for step in many))], [])
    assert [rail.lane for rail in rails[MOST_LANES:-1]] == [None] * 5
    assert rails[-1] == Rail(0, (), tuple(range(MOST_LANES)), False)
