"""Kernels of Linux boards with their epilogues: what the specification says, under the emulator."""

from __future__ import annotations

import numpy as np
import pytest

from ibert_tvm.schedules import schedule_kernel
from ibert_tvm.targets import TargetDescription
from tests.examples import examples

from .linux_kernels import BoardKernels
from .matrix_kernels import attention, linear
from .row_kernels import KERNELS
from .row_program import RowKernel
from .tools import BOARDS, board


def matrix_kernels(target: TargetDescription) -> dict[str, RowKernel]:
    """Linear layers and attention, in whole tiles and in sizes that nothing divides."""
    kernels = {
        f"linear_{rows}_{epilogue}": linear(target, rows, depth, columns, epilogue=epilogue)
        for rows, depth, columns, epilogue in (
            (1, 33, 13, "requantise"),
            (3, 64, 24, "gelu"),
            (7, 19, 40, "residual"),
            (16, 96, 48, "none"),
        )
    }
    for rows, depth, columns in ((1, 13, 5), (34, 40, 9)):
        kernels[f"halves_{rows}"] = linear(target, rows, depth, columns, halves=True)
    for tokens, heads, head_dim, masked in ((16, 2, 32, 3), (7, 2, 12, 1), (32, 1, 16, 0)):
        kernels[f"attention_{tokens}"] = attention(
            target, 2, tokens, heads, head_dim, masked=masked
        )
    return kernels


def row_kernels(target: TargetDescription) -> dict[str, RowKernel]:
    """Every row operation, in whole vectors and in sizes that no vector divides."""
    return {
        f"{name}_{channels}": build(target, 5, channels)
        for name, build in KERNELS.items()
        for channels in (32, 37)
    }


def compiled(kernels: dict[str, RowKernel], target: TargetDescription) -> BoardKernels:
    """Schedule and compile all kernels."""
    functions = {
        name: schedule_kernel(name, kernel.func, target) for name, kernel in kernels.items()
    }
    return BoardKernels(functions, target)


def compare(kernels: dict[str, RowKernel], built: BoardKernels) -> None:
    """Run all kernels, and compare every result in every integer."""
    for name, kernel in kernels.items():
        poison = [np.full_like(array, 0x5A) for array in kernel.outputs]
        results = built.run(name, *kernel.inputs, *poison)[len(kernel.inputs) :]
        for result, expected in zip(results, kernel.outputs, strict=True):
            np.testing.assert_array_equal(result, expected, err_msg=name)


# aarch64-i8mm is in schedules/test_board_intrinsics.py, armv6-softfloat in test_board_linear.py.
@pytest.mark.slow
@pytest.mark.parametrize("name", examples(BOARDS, "aarch64-dotprod"))
def test_matrix_products_with_their_epilogues(name: str) -> None:
    target = board(name)
    kernels = matrix_kernels(target)
    compare(kernels, compiled(kernels, target))


# Those of 64 bits differ in matrix products only.
@pytest.mark.slow
@pytest.mark.parametrize("name", examples(BOARDS, "armv7-neon"))
def test_row_operations(name: str) -> None:
    target = board(name)
    kernels = row_kernels(target)
    compare(kernels, compiled(kernels, target))
