"""Features as callers give them: [batch, channels, frames], quantised on their side."""

from __future__ import annotations

import numpy as np
import pytest

from ibert_tvm.common.errors import InputError
from ibert_tvm.model.model_info import ModelInfo, OutputInfo
from ibert_tvm.runtime.metadata import InputRecord
from ibert_tvm.runtime.pixels import quantize_images

RECORD = InputRecord("input_features", "int8", 0.5, 3, -127, 127)
SIZE = (2, 3)


def test_features_are_quantised_by_their_scale_and_zero_point() -> None:
    features = np.array([[[0.0, 1.0, -1.0], [100.0, -100.0, 0.25]]], np.float32)
    found = quantize_images(RECORD, features, SIZE)
    np.testing.assert_array_equal(found, [[[3, 5, 1], [127, -127, 4]]])
    assert found.dtype == np.int8


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            None,
            "input_features is missing\n  why: the model takes features\n"
            "  what to do: give input_features, [batch, 2, 3]",
        ),
        (
            np.zeros((1, 2, 1, 3), np.float32),
            "input_features has the wrong shape\n  why: its shape is [1, 2, 1, 3]\n"
            "  what to do: give [batch, 2, 3], as the model's feature extractor does",
        ),
        (
            np.full((1, 2, 3), np.inf),
            "input_features holds values that are infinite or not a number\n"
            "  what to do: check how the features were prepared",
        ),
        (
            np.zeros((1, 2, 3), np.int64),
            "input_features has the wrong dtype\n  why: it is int64\n"
            "  what to do: give floats, as the model's feature extractor does; or int8 integers at "
            "the scale 0.5",
        ),
    ],
)
def test_features_that_do_not_fit(given: np.ndarray | None, message: str) -> None:
    with pytest.raises(InputError) as error:
        quantize_images(RECORD, given, SIZE)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("names", "size", "message"),
    [
        (("input_features",), (1, 2, 3), "image_size is (1, 2, 3): channels, frames are needed"),
        (("input_ids",), (2, 3), "image_size of a model that takes input_ids"),
    ],
)
def test_sizes_that_no_input_has(
    names: tuple[str, ...], size: tuple[int, ...], message: str
) -> None:
    outputs = (OutputInfo("x", "x", "hidden_state"),)
    with pytest.raises(ValueError) as error:
        ModelInfo("a", "none", names, outputs, 4, 1, 0, image_size=size)
    assert str(error.value) == message
