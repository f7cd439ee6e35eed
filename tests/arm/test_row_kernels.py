"""Row operations without vectors: the specification's integers, in a counted number of steps."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from ibert_tvm.targets import get_target
from tests.arm.bare_kernels import run
from tests.arm.linux_kernels import BoardKernels
from tests.arm.matrix_kernels import attention
from tests.arm.row_kernels import KERNELS
from tests.arm.row_program import RowKernel
from tests.arm.softmax_kernel import scheduled, softmax
from tests.arm.tools import needs
from tests.examples import examples

pytestmark = pytest.mark.qemu

# The Cortex-M3 lacks one instruction of the M4, and is otherwise like it. The M0 has no product of
# 64 bits: in the default set it runs what requantises, divides or takes roots.
TARGETS = ("cortex-m4", "cortex-m0", "cortex-m3")
ON_M0 = ("gelu", "rotate", "layer_norm_wide", "requantise", "weighted_mean_pool", "quantise_rows")
BOARD = "armv6-softfloat"
TOOLS = ("arm-none-eabi-gcc", "qemu-system-arm")
BOARD_TOOLS = ("arm-linux-gnueabi-gcc", "qemu-arm")
# (rows, channels): such that nothing divides them, such that all does, and nearly nothing.
ODD = (5, 37)
SHAPES = ((1, 2), (2, 7), (4, 64), (3, 130))
# Keys, how many of them are padding, scale of the scores.
SOFTMAX_CASES = ((36, 5, 1e-3), (64, 64, 1e-3), (64, 63, 2e-7), (64, 1, 0.5))

# Executed instructions. Goals are what the project set itself; measured is what there is. A few
# per cent more are allowed for another version of LLVM.
SIZE = (128, 384)
SOFTMAX = (128, 128)
GOALS = {
    ("softmax", "cortex-m4"): 630_000,
    ("gelu", "cortex-m4"): 1_500_000,
    ("layer_norm", "cortex-m4"): 2_000_000,
    # CMSIS-NN's elementwise_add_s8, a fifth of it.
    ("residual_add", "cortex-m4"): 3_870_000 // 5,
    ("residual_add", "cortex-m3"): 4_130_000 // 5,
    ("residual_add", "cortex-m0"): 11_600_000 // 5,
}
MEASURED = {
    ("softmax", "cortex-m4"): 555_055,
    ("softmax", "cortex-m3"): 698_137,
    ("softmax", "cortex-m0"): 930_812,
    ("gelu", "cortex-m4"): 1_402_772,
    ("gelu", "cortex-m3"): 1_414_545,
    ("gelu", "cortex-m0"): 2_362_959,
    ("layer_norm", "cortex-m4"): 1_554_517,
    ("layer_norm", "cortex-m3"): 2_082_901,
    ("layer_norm", "cortex-m0"): 2_699_690,
    ("residual_add", "cortex-m4"): 529_417,
    ("residual_add", "cortex-m3"): 627_722,
    ("residual_add", "cortex-m0"): 845_658,
    ("requantise", "cortex-m4"): 640_396,
    ("embedding", "cortex-m4"): 361_740,
}
SPREAD = 1.03


def check(kernel: RowKernel, target: str) -> None:
    """Run a kernel on a microcontroller's board and compare its outputs."""
    outputs, counts = run(kernel, get_target(target))
    for got, expected in zip(outputs, kernel.outputs, strict=True):
        np.testing.assert_array_equal(got, expected, err_msg=kernel.name)
    assert counts.floating_point == 0
    assert counts.unknown == 0


@pytest.mark.slow_cases(8)
@pytest.mark.representatives(4)
@pytest.mark.parametrize(
    ("name", "target"),
    examples(
        [(name, target) for name in KERNELS for target in TARGETS],
        *((name, "cortex-m4") for name in KERNELS),
        *((name, "cortex-m0") for name in ON_M0),
        unpack=True,
    ),
)
def test_the_integers_are_those_of_the_specification(name: str, target: str) -> None:
    needs(*TOOLS)
    check(KERNELS[name](get_target(target), *ODD), target)


@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize(
    ("target", "shape"),
    examples(
        itertools.product(TARGETS, SHAPES),
        ("cortex-m0", (2, 7)),
        ("cortex-m4", (4, 64)),
        otherwise="record",
        unpack=True,
    ),
)
def test_shapes(name: str, target: str, shape: tuple[int, int]) -> None:
    needs(*TOOLS)
    check(KERNELS[name](get_target(target), *shape, seed=1), target)


@pytest.mark.representatives(1)
@pytest.mark.parametrize(
    ("target", "keys", "masked", "scale"),
    examples(
        [(target, *case) for target in TARGETS for case in SOFTMAX_CASES],
        *(("cortex-m4", *case) for case in SOFTMAX_CASES),
        ("cortex-m0", *SOFTMAX_CASES[0]),
        unpack=True,
    ),
)
def test_softmax(target: str, keys: int, masked: int, scale: float) -> None:
    needs(*TOOLS)
    check(softmax(get_target(target), 60, keys, 12, masked=masked, scale=scale), target)


@pytest.mark.representatives(1)
@pytest.mark.parametrize(
    ("target", "preset"),
    examples(
        [(target, preset) for target in TARGETS for preset in ("paper", "released")],
        ("cortex-m4", "paper"),
        ("cortex-m4", "released"),
        ("cortex-m0", "released"),
        unpack=True,
    ),
)
def test_attention_of_the_wide_presets(target: str, preset: str) -> None:
    needs(*TOOLS)
    check(attention(get_target(target), 2, 13, 2, 10, masked=4, preset=preset), target)


@pytest.mark.slow
def test_a_board_without_floating_point_unit() -> None:
    needs(*BOARD_TOOLS)
    target = get_target(BOARD)
    kernels = {name: make(target, *ODD) for name, make in KERNELS.items()}
    for preset in ("paper", "released"):
        kernels[preset] = attention(target, 1, 13, 2, 10, masked=4, preset=preset)
    functions = {name: scheduled(kernel, target) for name, kernel in kernels.items()}
    board = BoardKernels(functions, target)
    for name, kernel in kernels.items():
        poison = [np.full_like(array, 0x5A) for array in kernel.outputs]
        answers = board.run(name, *kernel.inputs, *poison)[len(kernel.inputs) :]
        for got, expected in zip(answers, kernel.outputs, strict=True):
            np.testing.assert_array_equal(got, expected, err_msg=name)


@pytest.mark.representatives(1)
@pytest.mark.parametrize(
    ("name", "target"),
    [
        pytest.param(*case, marks=() if case[1] == "cortex-m4" else pytest.mark.slow)
        for case in MEASURED
    ],
)
def test_executed_instructions(name: str, target: str) -> None:
    needs(*TOOLS)
    description = get_target(target)
    make = softmax if name == "softmax" else KERNELS[name]
    kernel = make(description, *(SOFTMAX if name == "softmax" else SIZE))
    outputs, counts = run(kernel, description)
    for got, expected in zip(outputs, kernel.outputs, strict=True):
        np.testing.assert_array_equal(got, expected)
    assert counts.instructions <= GOALS.get((name, target), counts.instructions)
    assert counts.instructions <= MEASURED[name, target] * SPREAD
