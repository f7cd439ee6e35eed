"""Row operators that no schedule has heard of are scheduled by what their stages do, everywhere."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ibert_tvm.schedules.rows import RowsRule
from ibert_tvm.targets import get_target
from tests.arm.row_program import RowKernel
from tests.examples import examples
from tests.schedules.everywhere import (
    check_on_board,
    check_on_gpu,
    check_on_microcontroller,
    check_on_this_processor,
)
from tests.schedules.new_row_operators import OPERATORS, ROWS

Operator = Callable[[], RowKernel]


@pytest.mark.representatives(2)
@pytest.mark.parametrize("operator", OPERATORS)
def test_on_this_processor(operator: Operator) -> None:
    check_on_this_processor([operator()], get_target("x86-64"))


@pytest.mark.slow
@pytest.mark.representatives(1)
@pytest.mark.qemu
@pytest.mark.parametrize("name", ["rpi4", "armv7-neon"])
def test_on_boards(name: str) -> None:
    """The second one sums by lanes."""
    check_on_board(lambda _target: [operator() for operator in OPERATORS], name)


@pytest.mark.slow
@pytest.mark.representatives(2)
@pytest.mark.qemu
@pytest.mark.parametrize("target", examples(["cortex-m4", "cortex-m55"], "cortex-m55"))
@pytest.mark.parametrize("operator", OPERATORS)
def test_on_microcontrollers(operator: Operator, target: str) -> None:
    check_on_microcontroller(operator(), get_target(target))


@pytest.mark.representatives(1)
@pytest.mark.parametrize("operator", OPERATORS)
def test_on_a_gpu(operator: Operator) -> None:
    check_on_gpu(operator())


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("name", ["x86-64", "cortex-m4"])
def test_rows_are_parallel_and_worked_on_at_once(operator: Operator, name: str) -> None:
    kernel, target = operator(), get_target(name)
    schedule = RowsRule().schedule(kernel.func, target)
    text = schedule.mod["main"].script(show_meta=False)
    assert f"T.parallel({ROWS}, " in text
    if kernel.name in ("root_mean_square_like", "softmax_like", "requantise_by_maximum"):
        # All of a row in one loop over rows: nothing of it waits for another row.
        outer = [line for line in text.splitlines() if line.startswith("    for ")]
        assert len(outer) == 1
    if kernel.name != "totals":
        assert ("T.vectorized(" in text) == (target.vector_lanes > 1)
