"""Reductions across lanes, and the shuffles that pack K and V, do what their descriptions say."""

from __future__ import annotations

import numpy as np
import pytest
from tvm.s_tir import TensorIntrin
from tvm.script import from_source

from ibert_tvm.schedules.intrinsics.packing import (
    LOADED_BYTES,
    key_packing_sources,
    loaded_values,
    value_packing_sources,
    zipped_value_sources,
)
from ibert_tvm.schedules.intrinsics.reduction import reduction_sources
from ibert_tvm.schedules.intrinsics.registration import Sources, register
from ibert_tvm.targets import TargetDescription
from tests.schedules.machine import TARGETS, Kernels, runnable

# Those whose instruction adds up several products, so that operands have groups to pack.
PACKING = tuple(name for name in TARGETS if name != "x86-64")


def compiled(sources: Sources, target: TargetDescription) -> Kernels:
    names = ("description", "implementation")
    return Kernels(
        {name: from_source(text) for name, text in zip(names, sources[:2], strict=True)}, target
    )


def both(kernels: Kernels, expected: np.ndarray, *arrays: np.ndarray) -> None:
    """Run both on copies of the arrays, the last of which is the result."""
    for name in ("description", "implementation"):
        got = kernels(name, *(array.copy() for array in arrays))
        np.testing.assert_array_equal(got, expected, err_msg=name)


@pytest.mark.representatives(1)
@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("kind", ["max", "sum"])
def test_reductions_across_lanes(name: str, kind: str) -> None:
    target = runnable(name)
    lanes = target.dot.lanes
    kernels = compiled(reduction_sources(kind, lanes), target)
    random = np.random.default_rng(0)
    low, high = -(2**31), 2**31 - 1
    rows = [random.integers(low, high + 1, lanes) for _ in range(50)]
    rows += [np.full(lanes, edge) for edge in (low, high, 0, -1)]
    for lane in range(lanes):  # every lane counts
        row = np.full(lanes, -5)
        row[lane] = high if kind == "max" else 7
        rows.append(row)
    for row in rows:
        x = row >> 6 if kind == "sum" else row  # a sum that fits
        for start in (0, -(2**25), 2**25):
            total = max(start, int(x.max())) if kind == "max" else start + int(x.sum())
            result = np.array([start], "int32")
            both(kernels, np.array([total], "int32"), x.astype("int32"), result)


@pytest.mark.representatives(1)
@pytest.mark.parametrize("name", PACKING)
def test_packing_of_keys(name: str) -> None:
    target = runnable(name)
    lanes, depth = target.dot.lanes, target.dot.depth
    kernels = compiled(key_packing_sources(lanes, depth), target)
    random = np.random.default_rng(1)
    keys = random.permutation(lanes * LOADED_BYTES).astype("int8").reshape(lanes, LOADED_BYTES)
    for given in (keys, random.integers(-128, 128, keys.shape).astype("int8")):
        expected = given.reshape(lanes, LOADED_BYTES // depth, depth).transpose(1, 0, 2)
        both(kernels, expected, given, np.zeros(expected.shape, "int8"))


@pytest.mark.representatives(1)
@pytest.mark.parametrize("name", PACKING)
def test_packing_of_values(name: str) -> None:
    target = runnable(name)
    lanes, depth = target.dot.lanes, target.dot.depth
    kernels = compiled(value_packing_sources(lanes, depth), target)
    random = np.random.default_rng(2)
    values = random.permutation(lanes * depth).astype("int8").reshape(depth, lanes)
    for given in (values, random.integers(-128, 128, values.shape).astype("int8")):
        both(kernels, given.T, given, np.zeros((lanes, depth), "int8"))


@pytest.mark.parametrize("dtype", ["int8", "int16"])
def test_zipping_of_values_for_four_lanes(dtype: str) -> None:
    kernels = compiled(zipped_value_sources(4, 2, dtype), runnable("x86-64"))
    limits = np.iinfo(dtype)
    shape = (2, loaded_values(dtype))
    given = np.random.default_rng(3).integers(limits.min, limits.max + 1, shape).astype(dtype)
    expected = given.reshape(2, -1, 1, 4).transpose(1, 2, 3, 0)
    both(kernels, expected, given, np.zeros(expected.shape, dtype))


@pytest.mark.slow
@pytest.mark.representatives(2)
@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_intrinsics_are_registered_once_under_their_names(lanes: int) -> None:
    names = {
        register(reduction_sources("max", lanes)): f"ibert.reduce_max_{lanes}",
        register(reduction_sources("sum", lanes)): f"ibert.reduce_sum_{lanes}",
        register(key_packing_sources(lanes, 4)): f"ibert.pack_keys_{lanes}x4",
        register(value_packing_sources(lanes, 4)): f"ibert.pack_values_{lanes}x4",
    }
    for name, expected in names.items():
        assert name == expected
        assert TensorIntrin.get(name).same_as(TensorIntrin.get(name))


def test_an_unknown_reduction_is_a_key_error() -> None:
    with pytest.raises(KeyError, match="product"):
        reduction_sources("product", 8)
