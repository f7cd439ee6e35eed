"""What is written for NumPy, on torch tensors."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ibert_tvm.relay_passes.canonical.evaluate import FloatModel
from ibert_tvm.train.integers import TensorArray
from ibert_tvm.train.straight_through import FloatTwin
from tests.examples import examples
from tests.golden.models import MODELS, canonical, inputs

SOURCES = sorted({golden.source for golden in MODELS.values() if not golden.whole})


@pytest.mark.parametrize("source", examples(SOURCES, "bert"))
def test_float_operators_mean_the_same(source: str) -> None:
    model = canonical(source)
    name = next(name for name, golden in MODELS.items() if golden.source == source)
    arrays = dict(inputs(name))
    if "pixel_values" in arrays:
        arrays["pixel_values"] = arrays["pixel_values"].astype(np.float32) / 64
    floats = FloatModel(model.module, model.parameters, "all")
    wanted = floats.run(arrays).values
    given = {
        variable: torch.from_numpy(np.array(array))
        for variable, array in floats.given(arrays).items()
    }
    found = FloatTwin(floats.steps, {}, {}).run(given, {})
    for key, array in wanted.items():
        np.testing.assert_allclose(found[key].numpy(), array, rtol=1e-4, atol=1e-4, err_msg=key)


def test_functions_that_need_care() -> None:
    array = np.arange(24).reshape(2, 3, 4)
    tensor = TensorArray(torch.from_numpy(array.copy()))
    for function in (
        lambda x: x[:, ::-1],
        lambda x: x[..., None, 1],
        lambda x: x // -5 + x % 7,
        lambda x: np.where(x > 3, x, -1),
        lambda x: np.where(x.any(axis=1), 1, 0),
        lambda x: np.left_shift(np.int64(1), x),
        lambda x: np.concatenate([x, x], axis=-1).swapaxes(0, 1),
        lambda x: np.split(x, (1, 3), axis=-1)[1],
        lambda x: np.lib.stride_tricks.sliding_window_view(
            np.pad(x, ((0, 0), (1, 2), (0, 0))), 2, 1
        ),
        lambda x: np.clip(x, 3, 9) + np.argmax(x, axis=1)[:, None],
        lambda x: np.take_along_axis(x, np.zeros((2, 3, 1), np.int64), 2),
    ):
        found, wanted = function(tensor), function(array)
        np.testing.assert_array_equal(found.tensor.numpy(), wanted)


def test_in_place_does_not_write_to_what_gradients_need() -> None:
    leaf = torch.ones(3, requires_grad=True)
    x = TensorArray(leaf)
    y = np.exp(x)
    y *= np.float32(2)
    y.tensor.sum().backward()
    assert torch.equal(leaf.detach(), torch.ones(3))
    assert leaf.grad is not None and torch.allclose(leaf.grad, 2 * torch.e * torch.ones(3))
