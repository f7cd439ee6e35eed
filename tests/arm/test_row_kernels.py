"""Row operations on Cortex-M: the specification's integers, in a counted number of instructions."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from targets import get_target
from tests.arm import row_kernels
from tests.arm.bare_kernels import BareObject, build_kernel, run
from tests.arm.row_kernels import KERNELS, RowKernel
from tests.arm.tools import needs

TARGETS = ("cortex-m0", "cortex-m3", "cortex-m4")
# (rows, channels): odd ones, a single number, and such that nothing is left over.
SHAPES = [(1, 2), (5, 37), (4, 64)]


@pytest.fixture(autouse=True)
def _tools() -> None:
    needs("arm-none-eabi-gcc", "qemu-system-arm")


@cache
def built(name: str, target: str, *sizes: int, **options: int) -> tuple[RowKernel, BareObject]:
    description = get_target(target)
    make = row_kernels.softmax if name == "softmax" else KERNELS[name]
    kernel = make(description, *sizes, **options)
    return kernel, build_kernel(kernel, description)


def assert_equal(kernel: RowKernel, results: list[np.ndarray]) -> None:
    for expected, result in zip(kernel.outputs, results, strict=True):
        np.testing.assert_array_equal(result, expected, err_msg=kernel.name)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", KERNELS)
def test_the_integers_are_those_of_the_specification(name: str, target: str) -> None:
    for shape in SHAPES:
        kernel, bare = built(name, target, *shape)
        assert_equal(kernel, run(kernel, get_target(target), bare)[0])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("keys", "masked", "scale"),
    [(4, 0, 1e-3), (36, 5, 1e-3), (64, 64, 1e-3), (64, 63, 2e-7), (64, 1, 0.5)],
)
def test_the_softmax_is_that_of_the_specification(
    target: str, keys: int, masked: int, scale: float
) -> None:
    kernel, bare = built("softmax", target, 60, keys, 12, masked=masked, scale=scale)
    assert_equal(kernel, run(kernel, get_target(target), bare)[0])
