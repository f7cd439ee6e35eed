"""Matrix products on tensor cores, executed by the stand-in GPU, beside the specification."""

from __future__ import annotations

import pytest
from tvm import tirx

from schedules import ScheduleError, schedule_kernel
from schedules.cuda.gemm_tile import GemmTile
from schedules.cuda.linear import TensorCoreLinearRule
from schedules.rule import Rejection
from schedules.tiles import with_tile
from targets import get_target
from tests.cuda.linear_kernels import EPILOGUES, LinearCase, LinearKernel, linear_kernel
from tests.cuda.stand_in_gpu import run_kernel


def run(kernel: LinearKernel, target: str, tile: GemmTile | None = None) -> None:
    """Schedule a kernel, execute it, and compare."""
    func = kernel.func if tile is None else with_tile(kernel.func, tile)
    scheduled = TensorCoreLinearRule().apply(func, get_target(target))
    assert isinstance(scheduled, tirx.PrimFunc), scheduled
    kernel.check(run_kernel(scheduled, kernel.arguments, target))


@pytest.mark.parametrize("epilogue", EPILOGUES)
def test_every_epilogue_equals_the_specification(epilogue: str) -> None:
    kernel = linear_kernel(get_target("t4"), LinearCase(epilogue, rows=21, depth=48, columns=40))
    run(kernel, "t4", GemmTile(32, 32, 32, 16, 1, 64))
