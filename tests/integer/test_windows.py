"""Windows of images and features, and neighbouring tokens: what convolutions multiply."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import relax, tirx

from ibert_tvm.relay_passes import integer
from ibert_tvm.relay_passes.canonical import OPERATORS, CanonicalError
from ibert_tvm.relay_passes.dialect.types import SymbolicDim, TensorType
from ibert_tvm.relay_passes.errors import LoweringError
from ibert_tvm.relay_passes.integer.evaluate import evaluate
from ibert_tvm.relay_passes.integer.ranges import analyse_ranges
from ibert_tvm.relay_passes.integer.unbounded import check_unbounded
from tests.passes.models import module_of

BATCH = tirx.Var("batch", "int64")
SIDES = ("height", "width", "stride_down", "stride_across", "top", "bottom", "left", "right")
WINDOWS = {
    "image": ((7, 9), (3, 4, 2, 3, 1, 2, 2, 1)),
    "wide stride": ((6, 7), (2, 2, 3, 4, 0, 0, 1, 0)),
    "features": ((11,), (1, 3, 1, 2, 0, 0, 1, 1)),
}
RUNS = {"same": (3, 1, 1, 1), "halved": (3, 2, 1, 1), "apart": (2, 3, 0, 1)}


def run(build: Any, operand: np.ndarray) -> tuple[relax.IRModule, np.ndarray]:
    """The result of one operator, and the program."""
    x = relax.Var("x", relax.TensorType([BATCH, *operand.shape[1:]], str(operand.dtype)))
    made = module_of([x], build)
    return made, evaluate(made, {"x": operand}, {})[0]


@pytest.mark.parametrize("case", WINDOWS)
@pytest.mark.parametrize("zero_point", [0, -77])
def test_windows_are_those_of_a_convolution(case: str, zero_point: int) -> None:
    import torch

    size, sides = WINDOWS[case]
    given = dict(zip(SIDES, sides, strict=True))
    random = np.random.default_rng(0)
    pixels = random.integers(-128, 128, (2, 3, *size)).astype("int8")
    made, found = run(
        lambda x: integer.windows(x, name="w", zero_point=zero_point, **given), pixels
    )
    real = pixels.astype(np.float32) - zero_point
    canonical = OPERATORS["canonical.windows"]("w", **given).evaluate(pixel_values=real)
    np.testing.assert_array_equal(found.astype(np.float32) - zero_point, canonical)
    weight = random.normal(size=(5, 3, given["height"], given["width"])).astype(np.float32)
    image = torch.from_numpy(real.reshape(2, 3, -1, size[-1]))
    padded = torch.nn.functional.pad(image, [given[side] for side in SIDES[6:] + SIDES[4:6]])
    strides = (given["stride_down"], given["stride_across"])
    wanted = torch.nn.functional.conv2d(padded, torch.from_numpy(weight), stride=strides)
    product = canonical @ weight.reshape(5, -1).T
    np.testing.assert_allclose(product, wanted.flatten(2).mT.numpy(), rtol=1e-4, atol=1e-2)
    assert analyse_ranges(made, {}).values["w"] == (-128, 127)
    report = analyse_ranges(made, {}).details
    assert check_unbounded(made, {"x": pixels.astype("int64")}, {}, report) == []


@pytest.mark.parametrize("case", RUNS)
def test_neighbouring_tokens_are_those_of_a_convolution(case: str) -> None:
    import torch

    given = dict(zip(("width", "stride", "before", "after"), RUNS[case], strict=True))
    random = np.random.default_rng(1)
    tokens = random.integers(-900, 900, (2, 9, 4)).astype("int32")
    _, found = run(lambda x: integer.unfold_tokens(x, name="u", **given), tokens)
    real = tokens.astype(np.float32)
    canonical = OPERATORS["canonical.unfold_tokens"]("u", **given).evaluate(x=real)
    np.testing.assert_array_equal(found, canonical)
    weight = random.normal(size=(5, 4, given["width"])).astype(np.float32)
    around = (given["before"], given["after"])
    padded = torch.nn.functional.pad(torch.from_numpy(real).mT, around)
    wanted = torch.nn.functional.conv1d(padded, torch.from_numpy(weight), stride=given["stride"])
    product = canonical @ weight.transpose(0, 2, 1).reshape(5, -1).T
    np.testing.assert_allclose(product, wanted.mT.numpy(), rtol=1e-4, atol=1e-2)


def test_a_free_length_stays_as_it_is(messages) -> None:
    tokens = TensorType((SymbolicDim("batch"), SymbolicDim("seq_len"), 4), "int32")
    same = integer.OPERATORS["integer.unfold_tokens"]("u", width=3, stride=1, before=2, after=0)
    assert same.result_type({"x": tokens}).shape == (*tokens.shape[:2], 12)
    x = relax.Var("x", relax.TensorType([BATCH, tirx.Var("seq_len", "int64"), 4], "int32"))
    with messages.raises(LoweringError):
        integer.unfold_tokens(x, name="u", width=3, stride=2, before=1, after=1)


def test_windows_that_do_not_fit(messages) -> None:
    pixels = relax.Var("x", relax.TensorType([BATCH, 3, 4, 5], "uint8"))
    given = dict(zip(SIDES, (3, 7, 1, 1, 0, 0, 1, 0), strict=True))
    with messages.raises(LoweringError):
        integer.windows(pixels, name="w", zero_point=0, **given)
    with pytest.raises(LoweringError, match=r"zero_point -1 is outside \[0, 255\]"):
        integer.windows(pixels, name="w", zero_point=-1, **{**given, "width": 2})
    with pytest.raises(LoweringError, match=r"left 2 is outside \[0, 1\]"):
        integer.windows(pixels, name="w", zero_point=0, **{**given, "width": 2, "left": 2})
    with pytest.raises(CanonicalError, match="windows of 3 x 7 of an input of 4 x 5"):
        OPERATORS["canonical.windows"]("w", **given).check_dims({"H": 4, "W": 5})
