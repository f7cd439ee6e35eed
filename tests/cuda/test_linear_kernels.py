"""Matrix products on tensor cores, executed by the stand-in GPU, beside the specification."""

from __future__ import annotations

import pytest
from tvm import tirx
from tvm.script import from_source

from ibert_tvm.schedules import ScheduleError
from ibert_tvm.schedules.cuda.gemm_tile import GemmTile
from ibert_tvm.schedules.cuda.linear import TensorCoreLinearRule
from ibert_tvm.schedules.tiles import AttentionTile, with_tile
from ibert_tvm.targets import get_target
from tests.cuda.attention_kernels import AttentionCase, attention_kernel
from tests.cuda.linear_kernels import (
    EPILOGUES,
    LinearCase,
    LinearKernel,
    linear_function,
    linear_kernel,
)
from tests.cuda.stand_in_gpu import run_kernel
from tests.examples import examples
from tests.schedules.machine import refusal
from tests.snapshots import Messages


def run(
    kernel: LinearKernel, target: str, tile: GemmTile | None = None, observed: bool = False
) -> None:
    """Schedule a kernel, execute it, and compare."""
    func = kernel.func if tile is None else with_tile(kernel.func, tile)
    scheduled = TensorCoreLinearRule().schedule(func, get_target(target))
    assert isinstance(scheduled, tirx.PrimFunc), scheduled
    kernel.check(run_kernel(scheduled, kernel.arguments, target, observed=observed))


@pytest.mark.representatives(1)
@pytest.mark.slow_cases(8)
@pytest.mark.parametrize("epilogue", EPILOGUES)
def test_every_epilogue_equals_the_specification(epilogue: str) -> None:
    kernel = linear_kernel(get_target("t4"), LinearCase(epilogue, rows=21, depth=48, columns=40))
    run(kernel, "t4", GemmTile(32, 32, 32, 16, 1, 64))


# Two warps each way; the depth shared by two and by eight; fragments loaded four and two at a time;
# blocks of a row and of a column of warps; more and fewer stages than the depth has.
TILES = [
    ("t4", (70, 144, 96), GemmTile(64, 64, 32, 32, 1, 64)),
    ("t4", (33, 80, 72), GemmTile(32, 48, 16, 48, 2, 64)),
    ("t4", (65, 64, 128), GemmTile(128, 64, 64, 64, 1, 64)),
    ("t4", (5, 272, 16), GemmTile(16, 32, 16, 32, 8, 256)),
    ("a100", (70, 144, 96), GemmTile(64, 64, 32, 32, 1, 64, 3)),
    ("a100", (33, 112, 72), GemmTile(32, 48, 16, 48, 2, 64, 5)),
    ("h100", (65, 256, 80), GemmTile(64, 64, 64, 64, 2, 128, 2)),
    ("h100", (5, 272, 16), GemmTile(16, 32, 16, 32, 8, 256, 4)),
]


@pytest.mark.slow
@pytest.mark.parametrize(("target", "sizes", "tile"), examples(TILES, *TILES[::2], unpack=True))
def test_every_cut_equals_the_specification(
    target: str, sizes: tuple[int, int, int], tile: GemmTile
) -> None:
    kernel = linear_kernel(get_target(target), LinearCase("several", *sizes))
    run(kernel, target, tile)


# Rows of a pooler; one more than a tile; depths that are no multiple of 16, of 4 and of 2, whose
# rows begin anywhere; columns of a classifier.
SIZES = [(1, 64, 32), (8, 48, 48), (33, 100, 24), (17, 70, 20), (9, 37, 6), (4, 16, 3)]


@pytest.mark.representatives(1)
@pytest.mark.parametrize("target", examples(["t4", "a100"], "t4"))
@pytest.mark.parametrize("sizes", SIZES)
def test_odd_sizes_with_the_default_cut(target: str, sizes: tuple[int, int, int]) -> None:
    run(linear_kernel(get_target(target), LinearCase("short", *sizes)), target)


# Both orders of columns; two, four and one scales of a stage for a warp; a depth of groups that is
# not one of stages; the default cut of odd sizes, with a number of groups that is odd.
HALVES = [
    ("t4", (33, 80, 72), GemmTile(32, 48, 16, 48, 2, 64)),
    ("t4", (40, 144, 96), GemmTile(32, 32, 32, 16, 1, 64)),
    ("t4", (9, 37, 6), None),
    ("a100", (35, 112, 72), GemmTile(32, 48, 16, 48, 1, 64, 4)),
    ("a100", (33, 224, 72), GemmTile(32, 32, 32, 32, 2, 128, 3)),
    ("a100", (5, 272, 16), GemmTile(16, 32, 16, 32, 8, 256, 4)),
    ("h100", (17, 96, 20), None),
]


@pytest.mark.representatives(2)
@pytest.mark.parametrize(
    ("target", "sizes", "tile"), examples(HALVES, HALVES[0], HALVES[4], unpack=True)
)
def test_half_bytes_are_widened_in_registers(
    target: str, sizes: tuple[int, int, int], tile: GemmTile | None
) -> None:
    kernel = linear_kernel(get_target(target), LinearCase("several", *sizes, halves=True))
    run(kernel, target, tile, observed=True)


def test_what_widens_otherwise_is_not_taken() -> None:
    func = linear_function(get_target("t4"), LinearCase(halves=True))
    text = func.script()
    assert text.count("& 15) - 8)") == 1
    other = from_source(text.replace("& 15) - 8)", "& 15) - 7)"))
    assert (
        refusal(TensorCoreLinearRule(), other, get_target("t4"))
        == "the weights of the product are computed in its kernel"
    )


OBSERVED = [
    ("t4", GemmTile(32, 32, 16, 16, 1, 64)),
    ("t4", GemmTile(32, 16, 32, 16, 2, 64)),
    ("a100", GemmTile(32, 32, 16, 32, 1, 64, 4)),
    ("a100", GemmTile(16, 32, 16, 32, 2, 64, 3)),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "tile", "depth"),
    examples(
        [(*cut, depth) for depth in (48, 208, 45) for cut in OBSERVED],
        *((*cut, depth) for cut, depth in zip(OBSERVED, (45, 208, 48, 45), strict=True)),
        unpack=True,
    ),
)
def test_threads_neither_race_nor_read_what_nobody_wrote(
    target: str, tile: GemmTile, depth: int
) -> None:
    case = LinearCase("several", 35, depth, 40)
    run(linear_kernel(get_target(target), case), target, tile, observed=True)


def test_the_rule_says_what_it_does_not_take() -> None:
    rule = TensorCoreLinearRule()
    func = linear_function(get_target("t4"), LinearCase())
    other = attention_kernel(get_target("t4"), AttentionCase()).func
    assert (
        refusal(rule, other, get_target("t4"))
        == "the kernel is no matrix product of rows and columns"
    )
    assert refusal(rule, func, get_target("x86-64")) == "target x86-64 is no GPU"
    packed = linear_function(get_target("aarch64-dotprod"), LinearCase())
    assert (
        refusal(rule, packed, get_target("t4"))
        == "weights are packed as (12, 16, 4, 4) for a depth of 64"
    )


def test_decisions_that_the_device_cannot_follow_are_an_error(messages: Messages) -> None:
    func = linear_function(get_target("t4"), LinearCase())
    with messages.raises(ScheduleError):
        TensorCoreLinearRule().schedule(
            with_tile(func, GemmTile(128, 128, 64, 64, 1, 64, 3)), get_target("t4")
        )
    with messages.raises(ScheduleError):
        TensorCoreLinearRule().schedule(
            with_tile(func, AttentionTile(1, 1, 1, 1)), get_target("t4")
        )
