"""Images and features: graphs by hand, and what torch's exporter writes of transformers models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

from ibert_tvm.frontend import CanonicalModel, ModelSourceError, UnsupportedModelError, load
from ibert_tvm.frontend.onnx.importing import import_onnx_model
from ibert_tvm.frontend.transformers_import import real_size
from tests.compatibility.architectures import ARCHITECTURES
from tests.compatibility.table import build
from tests.frontend.imports import ops, verified
from tests.snapshots import Messages

from .graphs import CHANNELS, Graph

SIZE = (3, 8, 12)


def graph(
    conv: dict[str, Any], size: tuple[Any, ...] = ("batch", *SIZE), kernel: int = 4
) -> onnx.ModelProto:
    """Patches of images, one linear layer on each, and the mean of them as logits."""
    g = Graph(inputs=("pixel_values",), opset=17)
    weight, bias = (
        g.weight("patch.weight", CHANNELS, SIZE[0], kernel, kernel),
        g.weight("patch.bias", CHANNELS),
    )
    x = g.op("Conv", "pixel_values", weight, bias, **conv)
    x = g.op("Reshape", x, g.ints(0, CHANNELS, -1))
    x = g.op("Transpose", x, perm=[0, 2, 1])
    pooled = g.axes("ReduceMean", g.linear(x, "dense"), 1, keepdims=0)
    model = g.model(g.linear(pooled, "classifier", 5), names=("logits",), rank=2)
    model.graph.input[0].CopyFrom(
        helper.make_tensor_value_info("pixel_values", TensorProto.FLOAT, size)
    )
    return model


def imported(model: onnx.ModelProto, **options: Any) -> CanonicalModel:
    return import_onnx_model(model, source="by hand", **options)


@pytest.mark.parametrize(
    ("conv", "kernel", "operator"),
    [
        ({"strides": [4, 4]}, 4, "patches"),
        ({"strides": [2, 2], "pads": [1, 0, 2, 1]}, 4, "windows"),
        ({"strides": [3, 2], "auto_pad": "SAME_UPPER"}, 5, "windows"),
        ({"auto_pad": "SAME_LOWER"}, 4, "windows"),
    ],
)
def test_convolutions_of_images(conv: dict[str, Any], kernel: int, operator: str) -> None:
    model = verified(graph(conv, kernel=kernel), 1e-4, load=imported)
    assert (model.info.head, model.info.inputs) == ("image_classification", ("pixel_values",))
    assert model.info.image_size == SIZE
    assert ops(model)[:2] == [operator, "linear"]
    assert model.parameters["patch.bias"].shape == (CHANNELS,)


STRIDES = {"strides": [4, 4]}


def test_a_size_that_the_graph_leaves_free_is_given(messages: Messages) -> None:
    model = graph(STRIDES, ("batch", "planes", "height", "width"))
    assert imported(model, image_size=SIZE).info.image_size == SIZE
    with messages.raises(UnsupportedModelError):
        imported(model)


@pytest.mark.parametrize(
    ("size", "given"), [(("b", *SIZE), (3, 8, 8)), ((1, *SIZE), None), (("b", 3, 96), None)]
)
def test_sizes_that_are_refused(size: Any, given: Any, messages: Messages) -> None:
    with messages.raises(UnsupportedModelError):
        imported(graph(STRIDES, size), image_size=given, verify=False)


def test_heads_of_tokens_are_refused(messages: Messages) -> None:
    with messages.raises(ModelSourceError):
        imported(graph(STRIDES), head="token_classification")


class Output(torch.nn.Module):
    """One output of a model, of its only input."""

    def __init__(self, model: Any, output: str) -> None:
        super().__init__()
        self.model, self.output = model, output

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = getattr(self.model(values), self.output)
        return result


@pytest.mark.slow
@pytest.mark.parametrize(
    ("label", "head"),
    [
        ("vit", "image_classification"),
        ("beit", "none"),
        ("dinov3_vit", "none"),
        ("whisper", "none"),
    ],
)
def test_exports_of_transformers(label: str, head: str, tmp_path: Path) -> None:
    model = build(next(a for a in ARCHITECTURES if a.label == label), head)
    model = model.get_encoder() if label == "whisper" else model
    model.set_attn_implementation("eager")
    size = real_size(model)
    assert size is not None
    name = "input_features" if len(size) == 2 else "pixel_values"
    output = "last_hidden_state" if head == "none" else "logits"
    torch.onnx.export(
        Output(model, output).eval(),
        (torch.zeros((2, *size)),),
        str(tmp_path / "model.onnx"),
        input_names=[name],
        output_names=[output],
        opset_version=18,
        dynamo=False,
        dynamic_axes={name: {0: "batch"}},
    )
    loaded = verified(tmp_path / "model.onnx", 1e-4)
    assert (loaded.info.head, loaded.info.image_size) == (head, size)
    again = load(model, head=head)
    assert ops(loaded) == ops(again)
    np.testing.assert_equal(len(loaded.parameters), len(again.parameters))
