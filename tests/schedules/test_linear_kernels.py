"""Scheduled linear kernels over sizes that no tile, vector or block divides, against NumPy."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tvm import te, tirx

from ibert_tvm.relay_passes.emit import KernelLayout
from ibert_tvm.relay_passes.emit.domain import KernelDomain, PackedWeight
from ibert_tvm.schedules.intrinsics.whole_tiles import ROWS_ARGUMENT
from ibert_tvm.schedules.nodes import calls_of
from tests.examples import examples
from tests.lowering import layout_of
from tests.schedules.linear_kernels import (
    SIZES,
    activations,
    expected_rows,
    linear_kernel,
    operand_dtypes,
    weight_of,
)
from tests.schedules.machine import TARGETS, Kernels, runnable

ROWS = (1, 7, 9, 51)


# One of each instruction.
@pytest.mark.representatives(1)
@pytest.mark.parametrize(
    "name", examples([*TARGETS, "x86-amx"], "x86-avx512-vnni", "x86-64-v3", "x86-64", "x86-amx")
)
def test_linear_kernels_equal_numpy(name: str) -> None:
    target = runnable(name)
    cases = [
        (f"linear_{m}_{k}_{n}_{dtype}", m, k, n, dtype)
        for (k, n), m, dtype in product(SIZES, ROWS, operand_dtypes(target))
    ]
    kernels = Kernels(
        {case: linear_kernel(target, m, weight_of(k, n), dtype) for case, m, k, n, dtype in cases},
        target,
    )
    layout = layout_of(target)
    for case, m, k, n, dtype in cases:
        x, weight = activations(m, k, dtype), weight_of(k, n)
        bias = np.arange(n, dtype="int32") * 1000 - 5000
        # The poison shows entries that were never stored.
        got = kernels(case, x, layout.pack(weight), bias, np.full((m, n), 0x5A5A5A5A, "int32"))
        np.testing.assert_array_equal(got, expected_rows(x, weight, bias), err_msg=case)


def test_whole_tiles_are_of_rows_with_a_token() -> None:
    target, rows, used = runnable("x86-amx"), 64, 37
    weight = weight_of(64, 48)
    kernel = linear_kernel(target, rows, weight, "uint8", packed=True)
    (call,) = calls_of(kernel, "tirx.call_extern")
    assert isinstance(call.args[ROWS_ARGUMENT], tirx.Min)
    x, bias = activations(rows, 64, "uint8"), np.zeros(48, "int32")
    starts = np.array([0, 5, used], "int32")
    arrays = (x, layout_of(target).pack(weight), bias, starts)
    got = Kernels({"packed": kernel}, target)(
        "packed", *arrays, np.full((rows, 48), 0x5A5A5A5A, "int32")
    )
    np.testing.assert_array_equal(got[:used], expected_rows(x, weight, bias)[:used])
    assert (got[used:] == 0x5A5A5A5A).all()


def product_bounds(weight: np.ndarray, low: int, high: int) -> tuple[int, int]:
    """What emission takes the entries of ``x weight^T`` to be, for x in [low, high]."""
    layout = KernelLayout("int8", lanes=1, depth=1, max_row_tile=1)
    columns, depth = weight.shape
    domain = KernelDomain(layout, 1, "layer")
    x = domain.stage(te.placeholder((1, depth), "int8"), low, high)
    packed = te.placeholder(layout.packed_shape(columns, depth), "int8")
    bias = domain.stage(te.placeholder((columns,), "int32"), 0, 0)
    result = domain.linear(x, PackedWeight(weight, packed), bias)
    return result.low, result.high


@given(
    st.integers(1, 6),
    st.integers(1, 9),
    st.integers(-300, 300),
    st.integers(0, 300),
    st.integers(0, 2**32 - 1),
)
def test_bounds_hold_for_every_partial_sum_and_are_reached(
    columns: int, depth: int, low: int, width: int, seed: int
) -> None:
    random = np.random.default_rng(seed)
    weight = random.integers(-128, 128, (columns, depth)).astype("int8")
    smallest, largest = product_bounds(weight, low, low + width)
    x = random.integers(low, low + width + 1, (20, depth))
    partial = np.cumsum(x[:, None, :] * weight.astype("int64"), axis=-1)
    assert smallest <= partial.min() and partial.max() <= largest
    if low <= 0 <= low + width:
        wide = weight.astype("int64")
        for bound, best in ((largest, np.max), (smallest, np.min)):
            ends = np.where((wide > 0) == (best is np.max), low + width, low)
            assert best((wide * ends).sum(axis=1)) == bound
