"""Operators whose form changed between operator sets mean the same in each."""

from __future__ import annotations

import onnx
import pytest

from ibert_tvm.frontend import UnsupportedModelError
from ibert_tvm.frontend.onnx.importing import import_onnx_model
from ibert_tvm.frontend.onnx.reading import OLDEST_OPSET
from tests.examples import examples
from tests.frontend.imports import verified

from .graphs import CHANNELS, Graph, layer_norm_written_out
from .test_spellings import ops

NEWEST = onnx.defs.onnx_opset_version()


def encoder(opset: int) -> onnx.ModelProto:
    """Slice, Squeeze, Unsqueeze, ReduceMean, ReduceSum, Softmax, Split, Dropout, Clip ..."""
    g = Graph(opset=opset)
    table = g.weight("positions.weight", 40, CHANNELS)
    length = g.op("Gather", g.op("Shape", "input_ids"), g.array(1, "int64"), axis=0)
    ids = g.op("Range", g.array(0, "int64"), length, g.array(1, "int64"))
    rows = g.op("Gather", table, g.axes("Unsqueeze", ids, 0))
    x = g.op("Add", g.words(), rows)
    x = g.ops("Dropout", layer_norm_written_out(g, x, "norm"), outputs=1)[0]
    x = g.attention(x, g.additive_mask)
    wide = g.linear(x, "up", 2 * CHANNELS)
    parts = (
        g.ops("Split", wide, g.ints(CHANNELS, CHANNELS), outputs=2, axis=-1)
        if opset >= 13
        else g.ops("Split", wide, outputs=2, axis=-1, split=[CHANNELS, CHANNELS])
    )
    low = g.op("Clip", parts[0], g.array(0.0))
    x = g.op("Add", low, parts[1])
    first = g.op("Slice", x, g.ints(0), g.ints(1), g.ints(1))
    pooled = g.op("Tanh", g.linear(g.axes("Squeeze", first, 1), "pooler"))
    return g.model(pooled, names=("pooler_output",), rank=2)


def test_old_and_new_operator_sets_are_covered():
    assert NEWEST >= 24
    assert OLDEST_OPSET == 11


@pytest.mark.representatives(2)
@pytest.mark.parametrize("opset", examples(range(11, NEWEST + 1), 11, 13, 18, NEWEST))
def test_an_encoder_in_each_operator_set(opset):
    model = verified(encoder(opset), load=import_onnx_model, source="by hand")
    kinds = "position_ids embedding embedding add layer_norm linear linear linear attention linear"
    assert ops(model) == [*kinds.split(), "relu", "linear", "add", "select_token", "linear", "tanh"]
    assert model.report.source == f"ONNX, operator set {opset}, made by hand"


@pytest.mark.parametrize("axis", [1, 2])
def test_softmax_of_old_operator_sets_normalises_over_several_axes(axis, messages):
    g = Graph(opset=11)
    x = g.words()
    q, k, v = (g.heads(g.linear(x, part)) for part in "qkv")
    scores = g.op("MatMul", q, g.op("Transpose", k, perm=[0, 1, 3, 2]))
    weights = g.op("Softmax", g.additive_mask(scores), axis=axis, name="soft")
    with messages.raises(UnsupportedModelError):
        import_onnx_model(
            g.model(g.joined(g.op("MatMul", weights, v))), source="by hand", verify=False
        )
