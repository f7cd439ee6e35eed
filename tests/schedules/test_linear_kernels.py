"""Scheduled linear kernels over sizes that no tile, vector or block divides, against NumPy."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from machine import TARGETS, Kernels, layout_of, runnable
from tvm import te, tirx

from relay_passes.emit.context import KernelContext
from relay_passes.emit.linear import emit_linear, product_bounds
from relay_passes.emit.stage import Stage
from schedules import schedule_kernel
from targets import TargetDescription

ROWS = (1, 7, 9, 51)
# Depths that are no multiple of the instruction's 2 or 4, columns that are none of its 8 or 16;
# and one even pair, for which the operand is not copied where its rows make whole tiles.
SIZES = ((13, 5), (31, 33), (3, 40), (64, 48))


def linear_kernel(
    target: TargetDescription, rows: int, weight: np.ndarray, dtype: str
) -> tirx.PrimFunc:
    """``x weight^T + bias`` on x [rows, K] of `dtype`, scheduled."""
    columns, depth = weight.shape
    context = KernelContext(layout_of(target), 1, rows, {"weight": weight})
    x = te.placeholder((rows, depth), dtype, name="x")
    bias = te.placeholder((columns,), "int32", name="bias")
    bounds = np.iinfo(dtype)
    result = emit_linear(
        context,
        Stage(x, bounds.min, bounds.max),
        "weight",
        Stage(bias, -(2**20), 2**20),
        "layer",
    )
    func = te.create_prim_func([x, context.packed_weight("weight"), bias, result.tensor])
    for key, value in {"ibert.kernel": "linear", **context.attributes}.items():
        func = func.with_attr(key, value)
    return schedule_kernel("layer", func, target)


def operand_dtypes(target: TargetDescription) -> tuple[str, ...]:
    """Types of activations that reach a linear kernel: both where the kernel widens them."""
    dtype = target.dot.lhs_dtype
    return ("int8", "uint8") if dtype == "int16" else (dtype,)


def weight_of(depth: int, columns: int) -> np.ndarray:
    random = np.random.default_rng(depth * 1000 + columns)
    weight = random.integers(-128, 128, (columns, depth)).astype("int8")
    weight[0], weight[-1] = -128, 127
    return weight


def activations(rows: int, depth: int, dtype: str) -> np.ndarray:
    bounds = np.iinfo(dtype)
    x = np.random.default_rng(rows).integers(bounds.min, bounds.max + 1, (rows, depth))
    x[0], x[-1] = bounds.min, bounds.max
    return x.astype(dtype)


@pytest.mark.parametrize("name", TARGETS)
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
        expected = x.astype("int64") @ weight.astype("int64").T + bias
        np.testing.assert_array_equal(got, expected, err_msg=case)


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
