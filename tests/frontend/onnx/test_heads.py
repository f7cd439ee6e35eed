"""Inputs and outputs of graphs: what they are taken for, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from ibert_tvm.common.errors import UsageError
from ibert_tvm.frontend import CanonicalModel, ModelSourceError, UnsupportedModelError
from ibert_tvm.frontend.onnx.importing import import_onnx_model
from tests.frontend.imports import run

from .graphs import CHANNELS, Graph, batch_of


def load(model, **options) -> CanonicalModel:
    return import_onnx_model(model, source="by hand", **options)


def encoder(g: Graph) -> str:
    return g.layer_norm(g.words(), "norm")


# -- inputs ----------------------------------------------------------------------------------


def renamed(*names: str) -> Graph:
    g = Graph(inputs=names)
    g.nodes.append(helper.make_node("Identity", [names[0]], ["input_ids"]))
    g.nodes.append(helper.make_node("Identity", [names[1]], ["attention_mask"]))
    return g


def test_inputs_by_other_names(messages):
    g = renamed("tokens:0", "mask")
    model = g.model(g.attention(encoder(g), g.additive_mask))
    names = {"tokens:0": "input_ids", "mask": "attention_mask"}
    assert load(model, inputs=names).info.inputs == ("input_ids", "attention_mask")
    with messages.raises(UnsupportedModelError):
        load(model)
    with messages.raises(UnsupportedModelError):
        load(model, inputs={"tokens:0": "input_ids"})


@pytest.mark.parametrize("names", [{"x": "input_ids"}, {"input_ids": "ids"}])
def test_names_that_do_not_fit(names, messages):
    g = Graph()
    with messages.raises(UsageError):
        load(g.model(encoder(g)), inputs=names)


def test_a_graph_without_token_ids(messages):
    g = Graph(inputs=("attention_mask",))
    x = g.op("Cast", g.axes("Unsqueeze", "attention_mask", -1), to=TensorProto.FLOAT)
    with messages.raises(UnsupportedModelError):
        load(g.model(x))


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [(TensorProto.FLOAT, ["b", "s"]), (TensorProto.INT64, ["b", "s", 3]), (91, ["b", "s"])],
)
def test_inputs_of_another_kind(dtype, shape, messages):
    g = Graph()
    model = g.model(encoder(g))
    model.graph.input[0].CopyFrom(helper.make_tensor_value_info("input_ids", dtype, shape))
    with messages.raises(UnsupportedModelError):
        load(model)


# -- heads -----------------------------------------------------------------------------------


def several() -> tuple[Graph, str, str]:
    g = Graph()
    hidden = g.attention(encoder(g), g.additive_mask)
    first = g.op("Gather", hidden, g.array(0, "int64"), axis=1)
    return g, hidden, g.op("Tanh", g.linear(first, "pooler"))


@pytest.mark.parametrize(
    ("head", "output"), [(None, "last_hidden_state"), ("pooled", "pooled"), ("none", None)]
)
def test_one_of_several_outputs(head, output):
    g, hidden, pooled = several()
    model = g.model(hidden, pooled, names=("last_hidden_state", "pooler_output"))
    model.graph.output[1].type.tensor_type.shape.dim.pop()
    loaded = load(model, head=head)
    assert [item.name for item in loaded.info.outputs] == [output or "last_hidden_state"]
    assert loaded.info.head == (head or "none")


def test_outputs_by_other_names_are_all_imported():
    g, hidden, pooled = several()
    model = g.model(hidden, pooled, names=("tokens", "sentence"))
    model.graph.output[1].type.tensor_type.shape.dim.pop()
    info = load(model).info
    assert [(item.name, item.kind) for item in info.outputs] == [
        ("tokens", "hidden_state"),
        ("sentence", "pooled"),
    ]
    assert info.notes == (
        "outputs of no known name are all imported, as they are: tokens as a vector per token, "
        "sentence as a vector per sequence",
    )


@pytest.mark.parametrize("opset", [pytest.param(12, marks=pytest.mark.slow), 17])
def test_mean_pooling_is_added(opset):
    g = Graph(opset=opset)
    hidden = g.attention(g.words(), g.additive_mask)
    model = g.model(hidden, names=("last_hidden_state",))
    before = model.SerializeToString()
    loaded = load(model, head="sentence_embedding")
    assert loaded.info.outputs[0].kind == "embedding"
    assert loaded.verified_error is not None  # ONNX Runtime runs the graph with the pooling
    assert model.SerializeToString() == before
    inputs = batch_of(2, 9)
    pooled, every = run(loaded, inputs), run(load(model, verify=False), inputs)
    weights = inputs["attention_mask"][:, :, None].astype(np.float32)
    np.testing.assert_allclose(
        pooled, (every * weights).sum(1) / weights.sum(1), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize(
    "how",
    ["ReduceL2", *(pytest.param(x, marks=pytest.mark.slow) for x in ("Sqrt", "LpNormalization"))],
)
def test_embeddings_that_are_normalised(how):
    g = Graph()
    hidden = g.attention(g.words(), g.additive_mask)
    mask = g.op("Cast", g.axes("Unsqueeze", "attention_mask", -1), to=TensorProto.FLOAT)
    total = g.axes("ReduceSum", g.op("Mul", hidden, mask), 1, keepdims=0)
    mean = g.op("Div", total, g.op("Clip", g.axes("ReduceSum", mask, 1, keepdims=0), g.array(1e-9)))
    if how == "LpNormalization":
        unit = g.op("LpNormalization", mean, axis=-1, p=2)
    else:
        norm = (
            g.axes("ReduceL2", mean, -1)
            if how == "ReduceL2"
            else g.op("Sqrt", g.axes("ReduceSum", g.op("Mul", mean, mean), -1))
        )
        floor = g.op("Clip", norm, g.array(1e-12))
        unit = g.op("Div", mean, g.op("Expand", floor, g.op("Shape", mean)))
    model = g.model(hidden, unit, names=("token_embeddings", "sentence_embedding"))
    model.graph.output[1].type.tensor_type.shape.dim.pop()
    loaded = load(model)
    assert (loaded.info.head, loaded.info.notes) == ("sentence_transformer", ())
    assert loaded.info.outputs[0].value.endswith("mean_pool.l2_norm")
    before = load(model, head="sentence_embedding", verify=False)
    assert before.info.notes == (
        "the source normalises its embeddings to length 1 afterwards; "
        "head='sentence_transformer' has it",
    )
    assert before.info.outputs[0].value.endswith("mean_pool")


def test_start_and_end_logits_are_one_output():
    g = Graph()
    logits = g.linear(encoder(g), "qa_outputs", 2)
    start, end = (
        g.axes("Squeeze", part, -1)
        for part in g.ops("Split", logits, g.ints(1, 1), outputs=2, axis=-1)
    )
    model = g.model(start, end, names=("start_logits", "end_logits"), rank=2)
    loaded = load(model)
    assert loaded.info.head == "question_answering"
    assert [(item.name, item.kind) for item in loaded.info.outputs] == [("logits", "span_logits")]
    assert loaded.parameters["qa_outputs.weight"].shape == (2, CHANNELS)


@pytest.mark.parametrize(
    ("rank", "head"), [(2, "sequence_classification"), (3, "token_classification")]
)
def test_logits_by_their_dimensions(rank, head):
    g = Graph()
    x = encoder(g)
    if rank == 2:
        x = g.op("Gather", x, g.array(0, "int64"), axis=1)
    model = g.model(g.linear(x, "classifier", 3), names=("logits",), rank=rank)
    loaded = load(model, id2label={0: "a", 1: "b", 2: "c"})
    assert (loaded.info.head, loaded.info.outputs[0].name) == (head, "logits")


@pytest.mark.parametrize("head", ["pooled", "question_answering", "image_classification"])
def test_a_head_that_the_graph_does_not_compute(head, messages):
    g = Graph()
    model = g.model(encoder(g), names=("last_hidden_state",))
    with messages.raises(ModelSourceError):
        load(model, head=head)
