"""Row operations of targets without vectors: few passes, unrolled, nothing in 16 bits."""

from __future__ import annotations

import pytest
from tvm import s_tir, te

from ibert_tvm.schedules.loops import (
    UNROLLED,
    fuse_row_passes,
    unroll_innermost,
    unroll_row_reductions,
)
from ibert_tvm.targets import TargetDescription, get_target
from tests.arm import row_kernels

SCALAR = ("cortex-m4", "cortex-m3", "cortex-m0", "armv6-softfloat")


@pytest.fixture(params=SCALAR)
def target(request: pytest.FixtureRequest) -> TargetDescription:
    return get_target(request.param)


def text_of(kernel: row_kernels.RowKernel, target: TargetDescription) -> str:
    return row_kernels.scheduled(kernel, target).script(show_meta=False)


@pytest.mark.parametrize("name", ["gelu", "requantise", "residual_add", "layer_norm"])
def test_entries_are_computed_in_32_bits_and_unrolled(name: str, target: TargetDescription) -> None:
    text = text_of(row_kernels.KERNELS[name](target, 4, 64), target)
    assert f"T.unroll({UNROLLED})" in text
    assert "T.vectorized" not in text and "T.ramp" not in text
    assert "ibert_q15_multiply" not in text and "T.ibert_multiply_add(" in text
    assert "T.int16(" not in text  # no constant of 16 bits, hence no arithmetic


def test_a_target_with_vectors_has_none_of_it() -> None:
    target = get_target("x86-64-v3")
    text = text_of(row_kernels.KERNELS["gelu"](target, 4, 64), target)
    assert "ibert_q15_multiply" in text and "T.int16(" in text
    assert "ibert_multiply_add" not in text and "ibert_saturate" not in text
    text = text_of(row_kernels.KERNELS["layer_norm"](target, 4, 64), target)
    assert "square_groups" not in text and "T.vectorized" in text


def test_exponentials_are_summed_where_they_are_computed(target: TargetDescription) -> None:
    text = text_of(row_kernels.softmax(target, 60, 64, 12), target)
    lines = [line.strip() for line in text.splitlines()]
    blocks = [line for line in lines if line.startswith("with T.sblock(")]
    start = blocks.index('with T.sblock("exponential"):')
    assert blocks[start + 1] == 'with T.sblock("row_sum_update"):'
    assert 'with T.sblock("row_max_update"):' in blocks[:start]
    between = lines[
        lines.index('with T.sblock("exponential"):') : lines.index(
            'with T.sblock("row_sum_update"):'
        )
    ]
    assert not any(line.startswith("for") and "range(64)" in line for line in between)


def test_squares_are_summed_in_groups(target: TargetDescription) -> None:
    text = text_of(row_kernels.layer_norm(target, 2, 64), target)
    assert "square_groups" in text and "range(8)" in text
    # 37 has no divisor: every group is a single square.
    assert "squares" in text_of(row_kernels.layer_norm(target, 2, 37), target)


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
    text = text_of(row_kernels.KERNELS[name](target, 4, 1), target)
    assert "T.parallel(4" in text and "T.unroll" not in text
