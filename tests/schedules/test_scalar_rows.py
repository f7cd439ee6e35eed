"""Loops of row operations on targets without vectors; counts of instructions say the rest."""

from __future__ import annotations

import pytest
from tvm import s_tir, te

from ibert_tvm.schedules.loops import fuse_row_passes, unroll_innermost, unroll_row_reductions
from ibert_tvm.targets import TargetDescription, get_target
from tests.arm import softmax_kernel
from tests.arm.row_kernels import KERNELS
from tests.arm.row_program import RowKernel

SCALAR = ("cortex-m4", "cortex-m3", "cortex-m0", "armv6-softfloat")


@pytest.fixture(params=SCALAR)
def target(request: pytest.FixtureRequest) -> TargetDescription:
    return get_target(request.param)


def text_of(kernel: RowKernel, target: TargetDescription) -> str:
    return softmax_kernel.scheduled(kernel, target).script(show_meta=False)


def test_kernels_without_these_blocks_are_left_alone() -> None:
    x = te.placeholder((3, 5), "int32", name="x")
    y = te.compute((3, 5), lambda i, j: x[i, j] + 1, name="y")
    sch = s_tir.Schedule(te.create_prim_func([x, y]))
    before = sch.mod["main"].script(show_meta=False)
    fuse_row_passes(sch, {})
    unroll_row_reductions(sch, {})
    assert sch.mod["main"].script(show_meta=False) == before


@pytest.mark.parametrize(
    ("length", "unrolled"), [(64, "T.unroll(8)"), (12, "T.unroll(6)"), (5, "T.unroll(5)"), (37, "")]
)
def test_the_innermost_loop_is_unrolled_by_a_divisor(length: int, unrolled: str) -> None:
    x = te.placeholder((3, length), "int32", name="x")
    y = te.compute((3, length), lambda i, j: x[i, j] + 1, name="y")
    sch = s_tir.Schedule(te.create_prim_func([x, y]))
    unroll_innermost(sch, sch.get_sblock("y"))
    text = sch.mod["main"].script(show_meta=False)
    assert unrolled in text
    assert bool(unrolled) == ("T.unroll" in text)


@pytest.mark.parametrize("name", ["gelu", "requantise", "residual_add"])
def test_rows_of_one_number(name: str, target: TargetDescription) -> None:
    """The last loop longer than 1 is that over rows, which is parallel and was split before."""
    text = text_of(KERNELS[name](target, 4, 1), target)
    assert "T.parallel(4" in text and "T.unroll" not in text
