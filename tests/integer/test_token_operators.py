"""Runs and shifts of tokens, rows that are added, clipping, leaky ReLU: against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tvm import relax, tirx

from ibert_tvm.relay_passes import integer
from ibert_tvm.relay_passes.errors import LoweringError
from ibert_tvm.relay_passes.integer.evaluate import evaluate
from ibert_tvm.relay_passes.integer.ranges import analyse_ranges
from tests.passes.models import module_of

BATCH, LENGTH, CHANNELS = 3, 5, 4
INT16 = np.arange(-(2**15), 2**15)


def run(make: Callable[..., Any], x: np.ndarray, **weights: np.ndarray) -> tuple[Any, np.ndarray]:
    """The module of one operator, and what it computes of x [batch, length, channels]."""
    batch = tirx.Var("batch", "int64")
    given = relax.Var("x", relax.TensorType([batch, *x.shape[1:]], str(x.dtype)))
    module = module_of([given], make, **weights)
    (found,) = evaluate(module, {"x": x}, weights)
    return module, found


def tokens(dtype: str = "int16") -> np.ndarray:
    random = np.random.default_rng(0)
    return random.integers(-99, 100, (BATCH, LENGTH, CHANNELS)).astype(dtype)


@pytest.mark.parametrize(("first", "count"), [(0, 1), (0, 5), (1, 4), (2, 2)])
def test_a_run_of_tokens_is_that_of_every_sequence(first: int, count: int) -> None:
    x = tokens()
    _, found = run(lambda v: integer.slice_tokens(v, name="y", first=first, count=count), x)
    np.testing.assert_array_equal(found, x[:, first : first + count])
    assert found.dtype == x.dtype


@pytest.mark.parametrize("distance", [-7, -5, -2, -1, 0, 1, 3, 5, 9])
def test_a_shift_brings_neighbours_and_zeros(distance: int) -> None:
    x = tokens()
    _, found = run(lambda v: integer.shift_tokens(v, name="y", distance=distance), x)
    for token in range(LENGTH):
        inside = 0 <= token + distance < LENGTH
        wanted = x[:, token + distance] if inside else np.zeros_like(x[:, 0])
        np.testing.assert_array_equal(found[:, token], wanted)


def test_a_row_is_added_to_every_token() -> None:
    x, row = tokens(), np.array([5, -(2**20), 0, 7], np.int32)
    _, found = run(lambda v, r: integer.add_row(v, r, name="y"), x, row=row)
    np.testing.assert_array_equal(found, x + row)
    assert found.dtype == np.int32


def test_clipping_over_all_numbers_of_16_bits() -> None:
    x = INT16.reshape(1, -1, 4).astype("int16")
    module, found = run(lambda v: integer.clip(v, name="y", low=-300, high=20000), x)
    np.testing.assert_array_equal(found, np.clip(x, -300, 20000))
    assert analyse_ranges(module, {}).values == {"y": (-300, 20000)}


@pytest.mark.parametrize("slope", [0, 1, 328, 3277, 32767, 32768])
def test_a_leaky_relu_over_all_numbers_of_16_bits(slope: int) -> None:
    x = INT16.reshape(1, -1, 4).astype("int16")
    _, found = run(lambda v: integer.leaky_relu(v, name="y", slope=slope), x)
    wide = x.astype(np.int64)
    np.testing.assert_array_equal(found, np.maximum(wide, (wide * slope + 2**14) >> 15))
    assert np.abs(found - np.maximum(wide, wide * (slope / 2**15))).max() <= 0.5


@pytest.mark.parametrize(
    "make",
    [
        lambda v: integer.slice_tokens(v, name="y", first=3, count=3),
        lambda v: integer.clip(v, name="y", low=3, high=2),
        lambda v: integer.leaky_relu(v, name="y", slope=32769),
    ],
)
def test_what_is_not_defined_is_refused(make: Callable[..., Any], messages) -> None:
    with messages.raises(LoweringError):
        run(make, tokens())
