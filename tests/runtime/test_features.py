"""Features as callers give them: [batch, channels, frames], quantised on their side."""

from __future__ import annotations

import numpy as np
import pytest

from ibert_tvm.common.errors import InputError
from ibert_tvm.model.model_info import ModelInfo, OutputInfo
from ibert_tvm.runtime.metadata import InputRecord
from ibert_tvm.runtime.pixels import quantize_images
from tests.snapshots import Messages

RECORD = InputRecord("input_features", "int8", 0.5, 3, -127, 127)
SIZE = (2, 3)


def test_features_are_quantised_by_their_scale_and_zero_point() -> None:
    features = np.array([[[0.0, 1.0, -1.0], [100.0, -100.0, 0.25]]], np.float32)
    found = quantize_images(RECORD, features, SIZE)
    np.testing.assert_array_equal(found, [[[3, 5, 1], [127, -127, 4]]])
    assert found.dtype == np.int8


@pytest.mark.parametrize(
    "given",
    [
        None,
        np.zeros((1, 2, 1, 3), np.float32),
        np.full((1, 2, 3), np.inf),
        np.zeros((1, 2, 3), np.int64),
    ],
    ids=["missing", "shape", "infinite", "dtype"],
)
def test_features_that_do_not_fit(given: np.ndarray | None, messages: Messages) -> None:
    with messages.raises(InputError):
        quantize_images(RECORD, given, SIZE)


@pytest.mark.parametrize(
    ("names", "size"), [(("input_features",), (1, 2, 3)), (("input_ids",), (2, 3))]
)
def test_sizes_that_no_input_has(
    names: tuple[str, ...], size: tuple[int, ...], messages: Messages
) -> None:
    outputs = (OutputInfo("x", "x", "hidden_state"),)
    with messages.raises(ValueError):
        ModelInfo("a", "none", names, outputs, 4, 1, 0, image_size=size)
