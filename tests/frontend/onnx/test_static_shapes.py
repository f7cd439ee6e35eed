"""Graphs that were exported for one shape: imported as they are, compiled for that shape only."""

from __future__ import annotations

import json

import numpy as np
import pytest

import ibert_tvm as ibert
from ibert_tvm.common.errors import UsageError
from ibert_tvm.frontend import CanonicalModel, UnsupportedModelError
from ibert_tvm.frontend.onnx.importing import import_onnx_model
from ibert_tvm.model.model_info import ModelInfo
from ibert_tvm.model.shapes import check_shapes

from .graphs import CHANNELS, HEADS, WIDTH, Graph, batch_of
from .test_spellings import ops


def encoder(
    batch: int | str, length: int | str, folded: bool = False, first: int = 0
) -> CanonicalModel:
    """Attention with sizes written into its shapes where they are known, and positions."""
    g = Graph(opset=17, shape=(batch, length))
    sizes = [0 if isinstance(size, str) else size for size in (batch, length)]
    rows = g.weight("positions.weight", 40, CHANNELS)
    if folded:  # the sum over the table is computed, as exporters do that fold constants
        table = np.random.default_rng(3).normal(size=(batch, length, CHANNELS))
        rows = g.array(np.broadcast_to(table[:1], table.shape), name="positions.weight_1")
    else:
        rows = g.op("Gather", rows, g.array([first + np.arange(16)], "int64"))
    x = g.op("Add", g.words(), rows)
    parts = []
    for name in "qkv":
        split = g.op("Reshape", g.linear(x, name), g.ints(*sizes, HEADS, WIDTH))
        parts.append(g.op("Transpose", split, perm=[0, 2, 1, 3]))
    scores = g.op("MatMul", parts[0], g.op("Transpose", parts[1], perm=[0, 1, 3, 2]))
    weights = g.op("Softmax", g.additive_mask(scores), axis=-1)
    moved = g.op("Transpose", g.op("MatMul", weights, parts[2]), perm=[0, 2, 1, 3])
    joined = g.op("Reshape", moved, g.ints(*sizes, CHANNELS))
    return import_onnx_model(g.model(joined, names=("last_hidden_state",)), source="by hand")


@pytest.mark.parametrize(
    ("batch", "length", "folded"), [(1, 16, False), (1, 16, True), (3, 16, True), ("b", 16, False)]
)
def test_one_shape(batch, length, folded):
    model = encoder(batch, length, folded)
    assert sorted(ops(model)) == sorted(
        ["embedding", "position_ids", "embedding", "add", *["linear"] * 3, "attention"]
    )
    assert model.info.static_shape == (None if batch == "b" else batch, length)
    assert model.info.max_sequence_length == (16 if folded else 40)
    assert model.verified_error is not None
    assert ModelInfo.from_json(json.loads(json.dumps(model.info.to_json()))) == model.info


@pytest.mark.parametrize("first", [25, -41])
def test_positions_that_a_table_does_not_have(first, messages):
    with messages.raises(UnsupportedModelError):
        encoder(1, 16, first=first)


def test_it_is_compiled_for_its_shape_only(messages):
    quantized = ibert.quantize(encoder(1, 16), [batch_of(8, 16)])
    with messages.raises(UsageError):
        ibert.compile(quantized, target="x86-64-v3", shapes=[(1, 16), (2, 16)])
    assert check_shapes(None, quantized) == [(1, 16)]


@pytest.mark.parametrize("batch", [16, 2**62])  # the larger one was allocated
def test_shapes_that_are_refused(batch, messages):
    with messages.raises(UnsupportedModelError):
        encoder(batch, 16)


def test_inputs_of_different_shapes(messages):
    g = Graph(opset=17, shape=(1, 16))
    g.inputs[1].type.tensor_type.shape.dim[1].dim_value = 8
    with messages.raises(UnsupportedModelError):
        import_onnx_model(g.model(g.words()), source="by hand")


def test_long_sequences_take_few_probes():
    from ibert_tvm.frontend.canonicalise.inputs import Probes

    short, long = Probes(("ids", "mask"), 2, 13), Probes(("ids", "mask"), 1, 512)
    assert len(short.runs) == 2 + 2 * 26 + 3 + 3 + 1
    assert len(long.runs) == 2 + 2 * 64 + 64 + 3 + 1
    # Every place of every input differs from others in some run of zeros and ones.
    masks = np.stack([long.runs[i]["mask"][0] for i in long.binary("mask")])
    assert len({column.tobytes() for column in masks.T}) == 512
