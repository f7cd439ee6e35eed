"""Scheduled linear kernels over sizes that no tile, vector or block divides, against NumPy."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tvm import te, tirx
from tvm.script import from_source

from ibert_tvm.relay_passes.emit import KernelLayout
from ibert_tvm.relay_passes.emit.domain import KernelDomain, PackedWeight
from ibert_tvm.relay_passes.spec import nibbles
from ibert_tvm.schedules.intrinsics.whole_tiles import ROWS_ARGUMENT
from ibert_tvm.schedules.intrinsics.widening import nibble_sources
from ibert_tvm.schedules.nodes import calls_of
from ibert_tvm.targets import DotInstruction, get_target
from tests.examples import examples
from tests.lowering import layout_of
from tests.schedules.linear_kernels import (
    SIZES,
    activations,
    expected_rows,
    half_bytes,
    linear_kernel,
    narrow_weight_of,
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


@pytest.mark.representatives(1)
@pytest.mark.parametrize(
    "name", examples([*TARGETS, "x86-amx"], "x86-avx512-vnni", "x86-64-v3", "x86-64")
)
def test_half_bytes_give_what_the_bytes_give_that_they_stand_for(name: str) -> None:
    target = runnable(name)
    layout, dtype = layout_of(target), operand_dtypes(target)[0]
    cases = {f"halves_{m}_{k}_{n}": (m, k, n) for m in (1, 51) for k, n in ((13, 5), (96, 48))}
    kernels = Kernels(
        {
            case: linear_kernel(target, m, narrow_weight_of(k, n), dtype, halves=True)
            for case, (m, k, n) in cases.items()
        },
        target,
    )
    for case, (m, k, n) in cases.items():
        x, weight = activations(m, k, dtype), narrow_weight_of(k, n)
        halves, scales = half_bytes(weight)
        packed = layout.pack(halves), layout.pack(scales, "columns")
        bias = np.arange(n, dtype="int32") * 1000 - 5000
        got = kernels(case, x, *packed, bias, np.full((m, n), 0x5A5A5A5A, "int32"))
        np.testing.assert_array_equal(got, expected_rows(x, weight, bias), err_msg=case)


@pytest.mark.representatives(2)
@pytest.mark.parametrize(
    "dot",
    [
        DotInstruction("any", "int8", "int8", *size, 1, 1)
        for size in ((16, 4), (4, 2), (4, 8), (4, 16))
    ],
    ids=["16x4", "4x2", "4x8", "4x16"],
)
def test_vectors_widen_half_bytes_as_the_loops_say_that_describe_them(dot: DotInstruction) -> None:
    groups, random = 3, np.random.default_rng(0)
    chunks = groups * nibbles.GROUP // dot.depth
    halves = random.integers(0, 256, (chunks // 2, dot.lanes, dot.depth)).astype("uint8")
    scales = random.integers(0, 256, (2, dot.lanes, 1)).astype("uint8")
    sources = nibble_sources(dot, chunks)
    functions = {"described": sources.description, "implemented": sources.implementation}
    kernels = Kernels(
        {name: from_source(text) for name, text in functions.items()}, get_target("x86-64")
    )
    shape = (chunks, dot.lanes, dot.depth)
    described, implemented = (
        kernels(name, halves, scales, np.zeros(shape, "int8")) for name in functions
    )
    np.testing.assert_array_equal(implemented, described)
    by_column = halves.swapaxes(0, 1).reshape(dot.lanes, -1), scales[..., 0].T
    want = nibbles.unpack(*by_column, groups * nibbles.GROUP)
    np.testing.assert_array_equal(described.swapaxes(0, 1).reshape(want.shape), want)


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
