"""Scheduled linear kernels of ARM boards over odd sizes, under the emulator, against NumPy."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from tests.arm.linux_kernels import BoardKernels
from tests.arm.tools import BOARDS, board
from tests.examples import examples
from tests.lowering import layout_of
from tests.schedules.linear_kernels import (
    SIZES,
    activations,
    expected_rows,
    linear_kernel,
    weight_of,
)

ROWS = (1, 3, 7, 16)
# Of the weights. With -128 on both sides, products of two pairs do not fit 16 bits.
LOWEST = (-127, -128)


@pytest.mark.slow
@pytest.mark.parametrize("name", examples(BOARDS, "armv6-softfloat"))
def test_linear_kernels_equal_numpy(name: str) -> None:
    target = board(name)
    layout = layout_of(target)
    cases = {
        f"linear_{m}_{k}_{n}": (m, k, n, LOWEST[index % 3 % 2])
        for index, ((k, n), m) in enumerate(product(SIZES, ROWS))
    }
    functions = {
        case: linear_kernel(target, m, weight_of(k, n, low), "int8")
        for case, (m, k, n, low) in cases.items()
    }
    if target.dot.full_range:
        marked = {case for case, func in functions.items() if "ibert.both_minimum" in func.attrs}
        assert marked == {case for case, (*_, low) in cases.items() if low == -128} != set()
    kernels = BoardKernels(functions, target)
    for case, (m, k, n, low) in cases.items():
        x, weight = activations(m, k, "int8"), weight_of(k, n, low)
        bias = np.arange(n, dtype="int32") * 1000 - 5000
        # The poison shows entries that were never stored.
        result = np.full((m, n), 0x5A5A5A5A, "int32")
        got = kernels(case, x, layout.pack(weight), bias, result)
        np.testing.assert_array_equal(got, expected_rows(x, weight, bias), err_msg=case)
