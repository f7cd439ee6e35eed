"""Borders beside convolutions, of torch modules and of what torch's exporter makes of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from ibert_tvm.frontend import UnsupportedModelError, load
from tests.examples import examples
from tests.frontend.imports import ops, verified
from tests.snapshots import Messages

WIDTH = 8
SIZES = {"input_features": (3, 24), "pixel_values": (3, 6, 7)}


class Function(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


class OfFeatures(nn.Module):
    """Convolutions of features, the mean of their tokens, and a linear layer."""

    INPUT = "input_features"

    def __init__(self, *first: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Sequential(*first)
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, input_features: torch.Tensor) -> torch.Tensor:
        return self.head(self.conv(input_features).flatten(2).transpose(1, 2).mean(1))


class OfImages(OfFeatures):
    """The same of images."""

    INPUT = "pixel_values"

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        return super().forward(pixel_values)


def encoder(layers: list[nn.Module]) -> OfFeatures:
    kind = OfImages if isinstance(layers[-1], nn.Conv2d) else OfFeatures
    return kind(*layers).eval()


def row(width: int, planes: int = 3, **settings: object) -> nn.Conv1d:
    return nn.Conv1d(planes, WIDTH, width, **settings)


def area(*window: int, **settings: object) -> nn.Conv2d:
    return nn.Conv2d(3, WIDTH, window, **settings)


def padded(*widths: int) -> Function:
    return Function(lambda x: functional.pad(x, widths))


def beside_rows(x: torch.Tensor) -> torch.Tensor:
    """Zeros put beside tokens before channels are moved to where a convolution reads them."""
    return functional.pad(x.transpose(1, 2), (0, 0, 3, 4)).transpose(1, 2)


TAKEN: dict[str, Callable[[], list[nn.Module]]] = {
    "an even window": lambda: [row(8, padding="same")],
    "an even window of tokens": lambda: [row(1), nn.GELU(), row(4, WIDTH, padding="same")],
    "ZeroPad1d": lambda: [nn.ZeroPad1d((3, 4)), row(8)],
    "ZeroPad1d of tokens": lambda: [row(1), nn.GELU(), nn.ZeroPad1d((0, 2)), row(3, WIDTH)],
    "ConstantPad1d of 0": lambda: [nn.ConstantPad1d((3, 4), 0.0), row(8)],
    "twice, and a padding": lambda: [nn.ZeroPad1d(1), padded(2, 0), row(8, padding=1)],
    "before it is moved": lambda: [Function(beside_rows), row(8)],
    "an even area": lambda: [area(4, 2, padding="same")],
    "ZeroPad2d": lambda: [nn.ZeroPad2d((1, 2, 0, 3)), area(4, 4, stride=2)],
    "ConstantPad2d of 0": lambda: [nn.ConstantPad2d((1, 0, 2, 0), 0.0), area(4, 4, stride=4)],
}
IN_DEFAULT_SET = ("an even window", "ZeroPad1d of tokens", "ZeroPad2d")


@pytest.mark.representatives(1)
@pytest.mark.parametrize("name", examples(TAKEN, *IN_DEFAULT_SET))
def test_zeros_beside_a_convolution_belong_to_it(name: str, tmp_path: Path) -> None:
    module = encoder(TAKEN[name]())
    size = SIZES[module.INPUT]
    model = verified(module, image_size=size)
    of_tokens = ["gelu", "unfold_tokens", "linear"] if name.endswith("of tokens") else []
    assert ops(model)[1:] == ["linear", *of_tokens, "mean_pool", "linear"]
    torch.onnx.export(
        *(module, (torch.zeros(2, *size),), tmp_path / "model.onnx"),
        input_names=[module.INPUT],
        output_names=["logits"],
        opset_version=17,
        dynamo=False,
    )
    assert ops(verified(tmp_path / "model.onnx")) == ops(model)


REFUSED: dict[str, Callable[[], list[nn.Module]]] = {
    "other numbers": lambda: [nn.ConstantPad1d(1, 0.5), row(3)],
    "mirrored": lambda: [row(3, padding=1, padding_mode="reflect")],
    "repeated": lambda: [nn.ReplicationPad2d(1), area(3, 3)],
    "wrapped around": lambda: [row(3, padding=1, padding_mode="circular")],
    "wrapped around tokens": lambda: [row(1), nn.GELU(), nn.CircularPad1d(1), row(3, WIDTH)],
    "cut off": lambda: [padded(-1, 3), row(3)],
    "planes": lambda: [padded(0, 0, 0, 1), row(3, 4)],
    "no convolution": lambda: [row(1), nn.ZeroPad1d(1)],
    "something in between": lambda: [nn.ZeroPad1d(1), nn.ReLU(), row(3)],
    "wider than the window": lambda: [nn.ZeroPad2d(3), area(3, 3)],
}
REFUSED_IN_DEFAULT_SET = ("other numbers", "mirrored", "something in between")


@pytest.mark.slow_cases(7)
@pytest.mark.parametrize("name", examples(REFUSED, *REFUSED_IN_DEFAULT_SET))
def test_other_borders_are_refused_with_the_reason(name: str, messages: Messages) -> None:
    module = encoder(REFUSED[name]())
    with messages.raises(UnsupportedModelError):
        load(module, image_size=SIZES[module.INPUT], verify=False)
