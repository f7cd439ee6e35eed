"""Operators that ONNX Runtime and newer operator sets fuse mean what ONNX Runtime computes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from ibert_tvm.frontend import UnsupportedModelError
from ibert_tvm.frontend.onnx.importing import import_onnx_model
from ibert_tvm.frontend.onnx.reading import check_model
from tests.frontend.imports import calls_of

from .graphs import CHANNELS, HEADS, VOCABULARY, WIDTH, Graph
from .test_spellings import imported, ops

ORT = {"domain": "com.microsoft"}


def embeddings(g: Graph, counts: bool = False) -> list[str]:
    """EmbedLayerNormalization of words, positions and, where there are any, token types."""
    types = any(item.name == "token_type_ids" for item in g.inputs)
    return g.ops(
        "EmbedLayerNormalization",
        "input_ids",
        "token_type_ids" if types else "",
        g.weight("words.weight", VOCABULARY, CHANNELS),
        g.weight("positions.weight", 40, CHANNELS),
        g.weight("types.weight", 2, CHANNELS) if types else "",
        *g.affine("norm"),
        *(["attention_mask"] if counts else []),
        outputs=2,
        epsilon=1e-12,
        **ORT,
    )


def bert(fused_attention: str, mask: str) -> onnx.ModelProto:
    """One layer of BERT as ONNX Runtime's optimiser leaves it."""
    g = Graph(
        opset=17, inputs=("input_ids", "attention_mask", "token_type_ids"), dtype=TensorProto.INT32
    )
    x, counts = embeddings(g, counts=mask == "counts")
    keep = {"raw": "attention_mask", "counts": counts}.get(mask, "")
    if mask == "summed":
        keep = g.op("ReduceSum", "attention_mask", g.ints(1), keepdims=0)
    wide = 3 * CHANNELS
    if fused_attention == "Attention":
        qkv = g.affine("qkv", CHANNELS, wide)
        context = g.op("Attention", x, *qkv, keep, num_heads=HEADS, **ORT)
    else:
        matrices = (g.weight(f"{part}.weight", CHANNELS, CHANNELS) for part in "qkv")
        operands = [*(g.op("MatMul", x, matrix) for matrix in matrices), g.weight("qkv.bias", wide)]
        options = {"num_heads": HEADS, "scale": 0.3, **ORT}
        context = g.op("MultiHeadAttention", *operands, keep, **options)
    skip = "SkipLayerNormalization"
    product = g.op("MatMul", context, g.weight("out.weight", CHANNELS, CHANNELS))
    bias = g.weight("out.bias", CHANNELS)
    y = g.op(skip, product, x, *g.affine("norm1"), bias, epsilon=1e-12, **ORT)
    inner = g.op("MatMul", y, g.weight("up.weight", CHANNELS, 2 * CHANNELS))
    inner = g.op("BiasGelu", inner, g.weight("up.bias", 2 * CHANNELS), **ORT)
    down = g.linear(inner, "down", CHANNELS, 2 * CHANNELS)
    last = g.op(skip, y, down, *g.affine("norm2"), **ORT)
    return g.model(last, names=("last_hidden_state",))


@pytest.mark.parametrize(
    ("attention", "mask"),
    [
        pytest.param("Attention", "raw", marks=pytest.mark.slow),
        ("Attention", "counts"),
        ("Attention", "summed"),
        ("MultiHeadAttention", "raw"),
    ],
)
def test_a_layer_of_bert_after_the_optimiser(attention, mask):
    model = imported(bert(attention, mask))
    expected = ["embedding"] * 3 + ["position_ids", "add", "add", "layer_norm"]
    expected += ["linear"] * 3 + ["attention", "linear", "add", "layer_norm"]
    expected += ["linear", "gelu", "linear", "add", "layer_norm"]
    assert sorted(ops(model)) == sorted(expected)
    assert model.info.inputs == ("input_ids", "attention_mask", "token_type_ids")
    folded = [item.what for item in model.report.foldings if item.name == "attention_mask"]
    assert folded == (
        [
            "the source keeps as many tokens from the front as the mask has ones; the mask itself "
            "is used, which is the same where padding is at the end"
        ]
        if mask in ("counts", "summed")
        else []
    )


def test_a_bias_with_fast_gelu_goes_to_its_linear_layer():
    g = Graph(opset=17)
    product = g.op("MatMul", g.words(), g.weight("up.weight", CHANNELS, 2 * CHANNELS))
    x = g.op("FastGelu", product, g.weight("up.bias", 2 * CHANNELS), **ORT)
    model = imported(g.model(x))
    assert [item.name for item in model.report.matched] == ["words", "up", "up.gelu"]


@pytest.mark.parametrize(
    ("flat", "kind"),
    [
        (True, "bool"),
        (False, "float"),
        pytest.param(False, "bool", marks=pytest.mark.slow),
        pytest.param(True, "float", marks=pytest.mark.slow),
    ],
)
def test_attention_of_operator_set_23(flat, kind):
    g = Graph(opset=23)
    x = g.words()
    q, k, v = (g.linear(x, f"self.{part}") for part in ("q", "k", "v"))
    wide = g.axes("Unsqueeze", "attention_mask", 1, 2)
    mask = g.op("Cast", wide, to=TensorProto.BOOL)
    if kind == "float":
        mask = g.op("Where", mask, g.array(0.0), g.array(-1e9))
    mask = g.over_queries(mask)
    if flat:
        heads = {"q_num_heads": HEADS, "kv_num_heads": HEADS}
        output = g.op("Attention", q, k, v, mask, scale=0.25, **heads)
    else:
        parts = [g.heads(part) for part in (q, k, v)]
        output = g.joined(g.op("Attention", *parts, mask))
    model = imported(g.model(output))
    assert ops(model) == ["embedding", "linear", "linear", "linear", "attention"]
    calls = [item for item in model.report.matched if item.op == "canonical.attention"]
    assert "Attention" in calls[0].source_ops
    (call,) = calls_of(model, "attention")
    assert float(call.attrs["scale"]) == (0.25 if flat else float(np.float32(WIDTH**-0.5)))


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [({"is_causal": 1}, (0, 0.0)), ({"is_causal": 1, "softcap": 5.0}, (0, 5.0))],
)
def test_attention_of_decoders(attributes, expected):
    g = Graph(opset=23)
    x = g.words()
    parts = [g.heads(g.linear(x, name)) for name in "qkv"]
    mask = g.op("Cast", g.axes("Unsqueeze", "attention_mask", 1, 2), to=TensorProto.BOOL)
    context = g.op("Attention", *parts, g.over_queries(mask), **attributes)
    model = imported(g.model(g.joined(context)))
    (call,) = calls_of(model, "attention")
    assert (int(call.attrs["after"]), float(call.attrs["cap"])) == expected


def test_attention_that_has_no_form_is_refused(messages):
    g = Graph(opset=23)
    x = g.words()
    parts = [g.heads(g.linear(x, name)) for name in "qkv"]
    context = g.op("Attention", *parts, "", parts[1], parts[2], name="attend")
    with messages.raises(UnsupportedModelError) as error:
        import_onnx_model(g.model(g.joined(context)), source="by hand", verify=False)
    # What was matched before it is in the report.
    assert error.value.report is not None
    assert [item.name for item in error.value.report.matched] == ["words", "q", "k", "v"]
    assert [(item.op, item.node) for item in error.value.report.refusals] == [
        ("Attention", "attend")
    ]


@pytest.mark.parametrize(
    ("kind", "attributes"),
    [
        ("Attention", {"do_rotary": 1}),
        ("SimplifiedLayerNormalization", {"axis": 1}),
        ("RotaryEmbedding", {"scale": 2.0}),
        ("PackedAttention", {}),
    ],
)
def test_other_fused_operators_are_refused(kind, attributes, messages):
    g = Graph(opset=17)
    x = g.words()
    more = {"num_heads": HEADS} if kind == "Attention" else {}
    size = 3 * CHANNELS if kind == "Attention" else CHANNELS
    y = g.op(kind, x, g.weight("w.weight", CHANNELS, size), **more, **attributes, **ORT)
    with messages.raises(UnsupportedModelError):
        import_onnx_model(g.model(y), source="by hand", verify=False)


def test_a_gemm_with_its_activation_and_a_layer_norm_before_its_operator_set():
    """ONNX Runtime saves optimised models with operators that the set does not have."""
    g = Graph(opset=14)
    x = g.layer_norm(g.words(), "norm")  # LayerNormalization came with 17
    first = g.op("Gather", x, g.array(0, "int64"), axis=1)
    weight, bias = g.weight("pooler.weight", CHANNELS, CHANNELS), g.weight("pooler.bias", CHANNELS)
    pooled = g.op("FusedGemm", first, weight, bias, transB=1, activation="Tanh", **ORT)
    model = g.model(pooled, names=("pooler_output",), rank=2)
    check_model(model, "by hand")
    assert ops(imported(model)) == ["embedding", "layer_norm", "select_token", "linear", "tanh"]


def test_norms_by_the_root_mean_square():
    """Those of ONNX and of ONNX Runtime, and one with the sum before it."""
    g = Graph(opset=23)
    x = g.words()
    weights = [g.weight(f"norm{index}.weight", CHANNELS) for index in range(3)]
    y = g.op("RMSNormalization", x, weights[0], epsilon=1e-6)
    # ONNX Runtime has this one in the domain of ONNX.
    y = g.op("SimplifiedLayerNormalization", g.linear(y, "dense"), weights[1])
    kind = "SkipSimplifiedLayerNormalization"
    product = g.op("MatMul", y, g.weight("last.weight", CHANNELS, CHANNELS))
    bias = g.weight("last.bias", CHANNELS)
    skipped = g.ops(kind, product, x, weights[2], bias, outputs=4, epsilon=1e-5, **ORT)
    model = imported(g.model(skipped[0], skipped[3]))
    names = ["embedding", "rms_norm", "linear", "rms_norm", "linear", "add", "rms_norm"]
    assert ops(model) == names


@pytest.mark.parametrize("kind", ["QuickGelu", "Sigmoid"])
def test_a_logistic_gate(kind):
    g = Graph(opset=17)
    x = g.words()
    domain = ORT if kind == "QuickGelu" else {}
    gate = g.op(kind, g.linear(x, "gate"), **domain)
    model = imported(g.model(g.op("Mul", gate, g.linear(x, "up"))))
    activation = "silu" if kind == "QuickGelu" else "sigmoid"
    assert sorted(ops(model)) == sorted(["embedding", "linear", activation, "linear", "multiply"])


def test_local_functions_are_taken_apart():
    function = helper.make_function(
        "local",
        "Twice",
        ["x"],
        ["y"],
        [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("Add", ["r", "r"], ["y"])],
        [helper.make_opsetid("", 17)],
    )
    g = Graph(opset=17)
    x = g.op("Twice", g.linear(g.words(), "dense"), domain="local")
    y = g.linear(x, "last")
    model = g.model(y)
    model.functions.append(function)
    assert "relu" in ops(imported(model))
