"""Whatever tuning decides about kernels for GPUs, they compute the same."""

from __future__ import annotations

import random

import numpy as np
import pytest

from ibert_tvm.schedules import schedule_kernel
from ibert_tvm.schedules.tiles import with_tile
from ibert_tvm.schedules.tuning import tile_space
from ibert_tvm.targets import get_target
from tests.cuda.attention_kernels import AttentionCase, attention_kernel
from tests.cuda.linear_kernels import LinearCase, linear_kernel
from tests.cuda.stand_in_gpu import run_kernel

_TARGETS = ("t4", "a100")
_TRIED = 3


@pytest.mark.slow
@pytest.mark.representatives(1)
@pytest.mark.parametrize("target", _TARGETS)
def test_decisions_on_a_product_change_no_result(target: str) -> None:
    description = get_target(target)
    kernel = linear_kernel(description, LinearCase("residual", 40, 96, 80))
    space = tile_space(kernel.func, description)
    for tile in random.Random(0).sample(space[1:], _TRIED):
        func = schedule_kernel("kernel", with_tile(kernel.func, tile), description)
        kernel.check(run_kernel(func, kernel.arguments, target))


@pytest.mark.parametrize("target", _TARGETS)
@pytest.mark.slow
def test_decisions_on_attention_change_no_result(target: str) -> None:
    description = get_target(target)
    kernel = attention_kernel(description, AttentionCase(seq_len=70, padded=(50,)))
    space = tile_space(kernel.func, description)
    for tile in random.Random(1).sample(space[1:], _TRIED):
        func = schedule_kernel("kernel", with_tile(kernel.func, tile), description)
        result = np.full_like(kernel.expected, 77)
        answers = run_kernel(func, [*kernel.inputs, result], target)
        np.testing.assert_array_equal(answers[-1], kernel.expected, err_msg=str(tile))
