"""Every way of writing linear layers, LayerNorm, GELU, masks and attention becomes one form."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from ibert_tvm.frontend import CanonicalModel
from ibert_tvm.frontend.onnx.importing import import_onnx_model
from tests.frontend.imports import calls_of, verified

from .graphs import CHANNELS, HEADS, WIDTH, Graph, layer_norm_written_out


def imported(model: onnx.ModelProto) -> CanonicalModel:
    """Import, compared with ONNX Runtime on another shape and at the longest sequence."""
    result = verified(model, load=import_onnx_model, source="by hand")
    assert result.report.refusals == []
    return result


def ops(model: CanonicalModel) -> list[str]:
    return [item.op.removeprefix("canonical.") for item in model.report.matched]


# -- GELU ------------------------------------------------------------------------------------


def gelu_erf(g: Graph, x: str, divide: bool, half_first: bool) -> str:
    ratio = g.array(np.sqrt(2.0)) if divide else g.array(np.sqrt(0.5))
    inner = g.op("Add", g.op("Erf", g.op("Div" if divide else "Mul", x, ratio)), g.array(1.0))
    half = g.array(0.5)
    if half_first:
        return g.op("Mul", g.op("Mul", half, x), inner)
    return g.op("Mul", g.op("Mul", x, inner), half)


def gelu_tanh(g: Graph, x: str, cube: str) -> str:
    third = g.op("Pow", x, g.array(3.0)) if cube == "pow" else g.op("Mul", g.op("Mul", x, x), x)
    inside = g.op("Add", x, g.op("Mul", g.array(0.044715), third))
    curve = g.op("Tanh", g.op("Mul", g.array(np.sqrt(2 / np.pi)), inside))
    return g.op("Mul", g.op("Mul", g.array(0.5), x), g.op("Add", g.array(1.0), curve))


GELUS: dict[str, Callable[[Graph, str], str]] = {
    "erf div": lambda g, x: gelu_erf(g, x, True, False),
    "erf mul": lambda g, x: gelu_erf(g, x, False, False),
    "erf half first": lambda g, x: gelu_erf(g, x, True, True),
    "erf operator": lambda g, x: g.op("Gelu", x),
    "erf microsoft": lambda g, x: g.op("Gelu", x, domain="com.microsoft"),
    "tanh pow": lambda g, x: gelu_tanh(g, x, "pow"),
    "tanh mul": lambda g, x: gelu_tanh(g, x, "mul"),
    "tanh operator": lambda g, x: g.op("Gelu", x, approximate="tanh"),
    "tanh microsoft": lambda g, x: g.op("FastGelu", x, domain="com.microsoft"),
}


def test_all_spellings_of_gelu_are_two_functions():
    g = Graph(opset=20)
    x = g.linear(g.words(), "dense")
    outputs = {name: make(g, x) for name, make in GELUS.items()}
    relu = g.op("Relu", x)
    model = imported(g.model(*outputs.values(), relu, g.op("Tanh", x)))
    # They read one tensor, so that each function is computed once.
    assert ops(model) == ["embedding", "linear", "gelu", "gelu", "relu", "tanh"]
    values = {item.tensor: item.value for item in model.report.tensors}
    forms = {name: values[tensor] for name, tensor in outputs.items()}
    assert len({forms[name] for name in GELUS if name.startswith("erf")}) == 1
    assert len({forms[name] for name in GELUS if name.startswith("tanh")}) == 1
    assert forms["erf div"] != forms["tanh pow"]


# -- LayerNorm -------------------------------------------------------------------------------


def test_all_spellings_of_layer_norm():
    g = Graph(opset=13)
    x = g.words()
    outputs = [
        layer_norm_written_out(g, x, f"norm{index}", squares, ends)
        for index, (squares, ends) in enumerate(
            [
                ("pow", "div"),
                ("mul", "reciprocal"),
                ("twice", "div"),
                ("moments", "div"),
                ("mul", "scale"),
                ("moments", "scale"),
            ]
        )
    ]
    model = imported(g.model(*outputs))
    assert ops(model) == ["embedding", *["layer_norm"] * 6]
    names = [item.name for item in model.report.matched]
    assert names == ["words", *(f"norm{index}" for index in range(6))]
    # Weights that the graph holds are taken as they are, not as they were measured.
    held = {item.name: onnx.numpy_helper.to_array(item) for item in g.weights}
    for index in range(6):
        for part in ("weight", "bias"):
            name = f"norm{index}.{part}"
            np.testing.assert_array_equal(model.parameters[name], held[name])


def test_layer_norm_without_weights_and_before_a_residual():
    g = Graph(opset=17)
    x = g.words()
    plain = g.op("Sub", x, g.axes("ReduceMean", x, -1))
    spread = g.axes("ReduceMean", g.op("Mul", plain, plain), -1)
    normal = g.op("Div", plain, g.op("Sqrt", g.op("Add", spread, g.array(1e-12))))
    residual = g.op("Add", x, normal)  # x + LN(x): no LayerNorm itself
    model = imported(g.model(g.layer_norm(residual, "last")))
    assert ops(model) == ["embedding", "layer_norm", "add", "layer_norm"]
    assert [dict(c.attrs)["epsilon"] for c in calls_of(model, "layer_norm")] == [1e-12, 1e-5]


def test_a_gelu_of_a_layer_norm_that_is_written_out():
    g = Graph(opset=13)
    x = layer_norm_written_out(g, g.words(), "norm")
    model = imported(g.model(gelu_erf(g, x, True, False)))
    assert ops(model) == ["embedding", "layer_norm", "gelu"]


def test_layer_norm_keeps_no_axis_for_a_moment():
    g = Graph(opset=13)
    x = g.words()
    mean = g.axes("Unsqueeze", g.axes("ReduceMean", x, -1, keepdims=0), -1)
    centred = g.op("Sub", x, mean)
    square = g.axes("ReduceMean", g.op("Mul", centred, centred), -1)
    deviation = g.op("Sqrt", g.op("Add", square, g.array(1e-5)))
    scaled = g.op("Mul", g.op("Div", centred, deviation), g.weight("norm.weight", CHANNELS))
    model = imported(g.model(g.op("Add", scaled, g.weight("norm.bias", CHANNELS))))
    assert ops(model) == ["embedding", "layer_norm"]


# -- linear layers ---------------------------------------------------------------------------


def test_all_spellings_of_a_linear_layer():
    g = Graph(opset=17)
    x = g.words()
    flat = g.op("Reshape", x, g.ints(-1, CHANNELS))
    shape = g.op("Concat", g.op("Shape", "input_ids"), g.ints(CHANNELS), axis=0)
    rows = {"transB": 1, "alpha": 2.0, "beta": 0.5}
    gemms = [
        g.op(
            "Gemm",
            *(flat, g.weight(f"{name}.weight", CHANNELS, CHANNELS)),
            g.weight(f"{name}.bias", CHANNELS),
            **more,
        )
        for name, more in (("a", {}), ("b", rows))
    ]
    outputs = [g.op("Reshape", gemm, shape) for gemm in gemms]
    turned = g.op("Transpose", g.weight("c.weight", CHANNELS, CHANNELS), perm=[1, 0])
    product = g.op("MatMul", x, turned)
    outputs.append(g.op("Add", g.weight("c.bias", CHANNELS), product))
    outputs.append(g.op("MatMul", x, g.weight("d.weight", CHANNELS, CHANNELS)))
    more = {"transB": 1, "alpha": 0.5, "domain": "com.microsoft"}
    outputs.append(g.op("FusedMatMul", x, g.weight("e.weight", CHANNELS, CHANNELS), **more))
    model = imported(g.model(*outputs))
    names = [item.name for item in model.report.matched]
    assert names == ["words", "a", "b", "c", "d", "e"]
    assert ops(model) == ["embedding", *["linear"] * 5]


@pytest.mark.parametrize("cut", ["Split", "Slice", "Reshape"])
def test_fused_queries_keys_and_values(cut):
    g = Graph(opset=17)
    x = g.words()
    fused = g.linear(x, "qkv", 3 * CHANNELS)
    if cut == "Split":
        parts = g.ops("Split", fused, outputs=3, axis=-1)
        q, k, v = (g.heads(part) for part in parts)
    elif cut == "Slice":
        bounds = [(i * CHANNELS, (i + 1) * CHANNELS) for i in range(3)]
        q, k, v = (
            g.heads(g.op("Slice", fused, g.ints(a), g.ints(b), g.ints(-1))) for a, b in bounds
        )
    else:
        split = g.op("Reshape", fused, g.ints(0, 0, 3, HEADS, WIDTH))
        moved = g.op("Transpose", split, perm=[2, 0, 3, 1, 4])
        q, k, v = (g.op("Gather", moved, g.array(i, "int64"), axis=0) for i in range(3))
    scores = g.op("MatMul", q, g.op("Transpose", k, perm=[0, 1, 3, 2]))
    scores = g.additive_mask(g.op("Div", scores, g.array(WIDTH**0.5)))
    output = g.joined(g.op("MatMul", g.op("Softmax", scores, axis=-1), v))
    model = imported(g.model(output))
    assert ops(model) == ["embedding", "linear", "linear", "linear", "attention"]
    assert [m.name for m in model.report.matched][1:4] == ["qkv[0:24]", "qkv[24:48]", "qkv[48:72]"]


# -- masks -----------------------------------------------------------------------------------


def boolean_mask(g: Graph, scores: str) -> str:
    keep = g.op("Cast", g.axes("Unsqueeze", "attention_mask", 1, 2), to=TensorProto.BOOL)
    return g.op("Where", keep, scores, g.array(-np.inf))


def inverted_mask(g: Graph, scores: str) -> str:
    zero = g.op("Equal", "attention_mask", g.array(0, "int64"))
    wide = g.axes("Unsqueeze", zero, 1, 2)
    return g.op("Where", wide, g.array(np.finfo(np.float32).min), scores)


def expanded_mask(g: Graph, scores: str) -> str:
    """The mask expanded to [batch, 1, tokens, tokens], as older transformers do."""
    shape = g.op("Shape", "attention_mask")
    rows = g.op("Gather", shape, g.ints(0), axis=0)
    length = g.op("Gather", shape, g.ints(1), axis=0)
    full = g.op("Concat", rows, g.ints(1), length, length, axis=0)
    wide = g.op("Expand", g.axes("Unsqueeze", "attention_mask", 1, 2), full)
    inverse = g.op("Sub", g.array(1.0), g.op("Cast", wide, to=TensorProto.FLOAT))
    masked = g.op("Cast", inverse, to=TensorProto.BOOL)
    low = g.op("Where", masked, g.array(np.finfo(np.float32).min), inverse)
    return g.op("Add", scores, low)


def outer_product_mask(g: Graph, scores: str) -> str:
    """Ones where a key may be seen, from ConstantOfShape and a product, as Keras does."""
    shape = g.op("Shape", "attention_mask")
    real = g.op("Cast", "attention_mask", to=TensorProto.FLOAT)
    ones = g.op(
        "ConstantOfShape", shape, value=onnx.helper.make_tensor("one", TensorProto.FLOAT, [1], [1])
    )
    pairs = g.op("Mul", g.axes("Unsqueeze", ones, 2), g.axes("Unsqueeze", real, 1))
    term = g.op("Mul", g.op("Sub", g.array(1.0), pairs), g.array(-1e9))
    return g.op("Add", scores, g.axes("Unsqueeze", term, 1))


def less_mask(g: Graph, scores: str) -> str:
    none = g.op("Less", "attention_mask", g.array(1, "int64"))
    seen = g.axes("Unsqueeze", g.op("Not", none), 1, 2)
    return g.op("Where", seen, scores, g.array(-1e30))


MASKS = [boolean_mask, inverted_mask, expanded_mask, outer_product_mask, less_mask]


def test_all_spellings_of_the_mask():
    g = Graph(opset=14)
    x = g.words()
    masks: list[Callable[[str], str]] = [g.additive_mask]
    masks += [lambda scores, make=make: make(g, scores) for make in MASKS]
    outputs = [g.attention(x, mask, f"a{index}") for index, mask in enumerate(masks)]
    model = imported(g.model(*outputs))
    assert ops(model).count("attention") == len(masks) == 6
    assert model.info.inputs == ("input_ids", "attention_mask")


@pytest.mark.parametrize(
    "dtype", ["FLOAT", *(pytest.param(x, marks=pytest.mark.slow) for x in ("INT32", "BOOL"))]
)
def test_the_mask_may_have_other_types(dtype):
    g = Graph(opset=17)
    g.inputs[1].type.tensor_type.elem_type = getattr(TensorProto, dtype)

    def mask(scores: str) -> str:
        wide = g.op("Cast", g.axes("Unsqueeze", "attention_mask", 1, 2), to=TensorProto.BOOL)
        return g.op("Where", wide, scores, g.array(-1e9))

    assert ops(imported(g.model(g.attention(g.words(), mask))))[-1] == "attention"


# -- positions -------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["Slice", "Range", "buffer"])
def test_positions(how):
    g = Graph(opset=17)
    table = g.weight("positions.weight", 40, CHANNELS)
    length = g.op("Gather", g.op("Shape", "input_ids"), g.array(1, "int64"), axis=0)
    zero, one = g.array(0, "int64"), g.array(1, "int64")
    if how == "Slice":  # of the table itself
        ends = g.axes("Unsqueeze", length, 0)
        rows = g.op("Slice", table, g.ints(0), ends, g.ints(0))
    elif how == "Range":
        rows = g.op("Gather", table, g.op("Range", zero, length, one))
    else:
        ids = g.array(np.arange(40).reshape(1, 40), "int64", name="position_ids")
        cut = g.op("Slice", ids, g.ints(0), g.axes("Unsqueeze", length, 0), g.ints(1))
        rows = g.op("Gather", table, cut)
    model = imported(g.model(g.op("Add", g.words(), rows)))
    assert sorted(ops(model)) == ["add", "embedding", "embedding", "position_ids"]
    assert model.info.max_sequence_length == 40
    assert model.parameters["positions.weight"].shape == (40, CHANNELS)


# -- tokens and channels ---------------------------------------------------------------------------


def neighbours(g: Graph, x: str) -> str:
    """Both neighbours' embeddings beside a token's own, as MobileBERT has them."""
    behind = g.op("Slice", x, g.ints(1), g.ints(2**31), g.ints(1))
    before = g.op("Slice", x, g.ints(0), g.ints(-1), g.ints(1))
    behind = g.op("Pad", behind, g.ints(0, 0, 0, 0, 1, 0))
    zeros_before = (g.ints(1, 0), "", g.ints(1)) if g.opset >= 18 else (g.ints(0, 1, 0, 0, 0, 0),)
    before = g.op("Pad", before, *zeros_before)
    return g.op("Concat", behind, x, before, axis=2)


@pytest.mark.parametrize("opset", [17, 18])  # from 18 on, Pad may say which axes it means
def test_neighbours_are_shifts(opset: int) -> None:
    g = Graph(opset)
    y = g.linear(neighbours(g, g.words()), "joined", inputs=3 * CHANNELS)
    found = ["embedding", *["shift_tokens"] * 2, *["linear"] * 3, *["add"] * 2]
    assert ops(imported(g.model(y))) == found


@pytest.mark.parametrize(
    ("kind", "attributes", "found"),
    [
        ("LeakyRelu", {"alpha": 0.2}, ["leaky_relu"]),
        ("HardSigmoid", {"alpha": 0.25, "beta": 0.4}, ["scale_channels", "add_row", "clip"]),
        ("HardSwish", {}, ["scale_channels", "add_row", "clip", "multiply"]),
    ],
)
def test_clipped_lines(kind: str, attributes: dict[str, float], found: list[str]) -> None:
    g = Graph()
    y = g.op(kind, g.layer_norm(g.words(), "norm"), **attributes)
    known = ops(imported(g.model(g.linear(y, "last"))))
    assert known == ["embedding", "layer_norm", *found, "linear"]


def test_a_batch_norm_of_channels_that_lie_before_tokens() -> None:
    g = Graph()
    x = g.op("Transpose", g.linear(g.words(), "up"), perm=[0, 2, 1])
    numbers = [g.weight(f"norm.{part}", CHANNELS) for part in ("weight", "bias", "mean")]
    variance = g.array(np.linspace(0.5, 2, CHANNELS), name="norm.variance")
    x = g.op("BatchNormalization", x, *numbers, variance)
    assert ops(imported(g.model(g.op("Transpose", x, perm=[0, 2, 1])))) == ["embedding", "linear"]
