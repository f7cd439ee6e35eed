"""Stretches of channels that may be a vector, of kernels that pair channels of a head."""

from __future__ import annotations

import pytest
from tvm import s_tir, te, tirx

from ibert_tvm.schedules.rows import ChannelRuns, channel_runs
from ibert_tvm.targets import get_target
from tests.arm.row_kernels import KERNELS, rotated
from tests.arm.row_program import RowProgram

CHANNELS = 48


def runs_of(index) -> ChannelRuns | None:
    """Of ``y[i, c] = x[i, index(c)]``."""
    x = te.placeholder((2, 2 * CHANNELS), "int32", name="x")
    y = te.compute((2, CHANNELS), lambda i, c: x[i, index(c)], name="y")
    sch = s_tir.Schedule(te.create_prim_func([x, y]))
    return channel_runs(sch.get(sch.get_sblock("y")))


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        (lambda c: c, None),
        (lambda c: c + 7, None),
        (lambda c: c // 12 * 12 + c % 12, None),
        (lambda c: c // 8 * 8 + (c // 4 + 1) % 2 * 4 + c % 4, ChannelRuns(4, 8)),
        (lambda c: c % 16, ChannelRuns(16, 16)),
        (lambda c: c // 2, ChannelRuns(2, 48)),
        (lambda c: c * 5 % 48, ChannelRuns(1, 48)),
    ],
)
def test_indices(index, expected: ChannelRuns | None) -> None:
    assert runs_of(index) == expected


def test_conditions() -> None:
    found = runs_of(lambda c: tirx.Select(c % 24 < 6, c, c + 1))
    assert found == ChannelRuns(6, 24)


@pytest.mark.parametrize(("heads", "turned", "run"), [(2, 24, 12), (2, 16, 8), (1, 40, 4)])
def test_a_rotation(heads: int, turned: int, run: int) -> None:
    program = RowProgram("rotate", "rotate", 3, CHANNELS, 0)
    target = get_target("x86-64-v3")
    kernel = program.finish(target, lambda p: rotated(p, heads, turned), 3 * CHANNELS)
    sch = s_tir.Schedule(kernel.func)
    found = channel_runs(sch.get(sch.get_sblock("rotated")))
    assert found == ChannelRuns(run, CHANNELS // heads)


@pytest.mark.parametrize("name", ["gelu", "requantise", "residual_add", "embedding"])
def test_most_kernels_have_one_run(name: str) -> None:
    func = KERNELS[name](get_target("x86-64-v3"), 3, CHANNELS).func
    sch = s_tir.Schedule(func)
    (block,) = sch.get_output_blocks(sch.get_sblock("root"))
    assert channel_runs(sch.get(block)) is None
