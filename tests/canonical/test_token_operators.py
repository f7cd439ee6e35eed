"""Canonical operators on tokens and channels: their meaning in float, and what they refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tvm import relax, tirx

from ibert_tvm.relay_passes.canonical import OPERATORS, CanonicalError, build

BATCH, LENGTH = tirx.Var("batch", "int64"), tirx.Var("seq_len", "int64")
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(2, 5, 4)).astype(np.float32)
ROW = RANDOM.normal(size=4).astype(np.float32)


def value(name: str, **attributes: Any) -> Any:
    return OPERATORS[f"canonical.{name}"]("y", **attributes)


def test_each_means_what_its_name_says() -> None:
    mask = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 7]])
    masked = value("mask_tokens").evaluate(x=X, attention_mask=mask)
    np.testing.assert_array_equal(masked, np.where(mask[:, :, None] != 0, X, 0))
    np.testing.assert_array_equal(value("scale_channels").evaluate(x=X, scale=ROW), X * ROW)
    np.testing.assert_array_equal(value("add_row").evaluate(x=X, row=ROW), X + ROW)
    run = value("slice_tokens", first=1, count=3).evaluate(x=X)
    np.testing.assert_array_equal(run, X[:, 1:4])
    clipped = value("clip", low=-0.5, high=1.0).evaluate(x=X)
    np.testing.assert_array_equal(clipped, np.clip(X, -0.5, 1.0))
    leaky = value("leaky_relu", slope=0.25).evaluate(x=X)
    np.testing.assert_array_equal(leaky, np.where(X > 0, X, X * np.float32(0.25)))
    for distance in (-6, -1, 0, 2, 5):
        shifted = value("shift_tokens", distance=distance).evaluate(x=X)
        padded = np.pad(X, [(0, 0), (9, 9), (0, 0)])
        np.testing.assert_array_equal(shifted, padded[:, 9 + distance : 14 + distance])


@pytest.mark.parametrize(
    "make",
    [
        lambda x: build.slice_tokens(x, name="y", first=3, count=4),
        lambda x: build.clip(x, name="y", low=1.0, high=1.0),
        lambda x: build.leaky_relu(x, name="y", slope=1.5),
    ],
)
def test_what_has_no_meaning_is_refused(make: Callable[..., Any], messages) -> None:
    x = relax.Var("x", relax.TensorType([BATCH, 6, 4], "float32"))
    with messages.raises(CanonicalError):
        relax.BlockBuilder().normalize(make(x))
