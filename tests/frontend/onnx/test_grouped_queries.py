"""Heads of queries that share keys: written out, in ONNX's Attention, and in ONNX Runtime's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from ibert_tvm.frontend import UnsupportedModelError
from ibert_tvm.frontend.onnx.importing import import_onnx_model
from tests.examples import examples
from tests.frontend.imports import calls_of
from tests.snapshots import Messages

from .graphs import CHANNELS, POSITIONS, WIDTH, Graph
from .test_fused import ORT
from .test_spellings import imported

HEADS, SHARED = 4, 2
ROTATED = 16  # ONNX Runtime turns heads of so many channels, or twice, three times as many
LAYER = ["embedding", "linear", "linear", "linear", "attention"]


def projections(g: Graph, width: int = WIDTH) -> list[str]:
    """Queries of `HEADS` heads, keys and values of `SHARED`."""
    x = g.words()
    return [
        g.linear(x, f"self.{part}", heads * width)
        for part, heads in zip("qkv", (HEADS, SHARED, SHARED), strict=True)
    ]


def split(g: Graph, x: str, heads: int) -> str:
    return g.op("Transpose", g.op("Reshape", x, g.ints(0, 0, heads, WIDTH)), perm=[0, 2, 1, 3])


def joined(g: Graph, x: str) -> str:
    return g.op("Reshape", g.op("Transpose", x, perm=[0, 2, 1, 3]), g.ints(0, 0, HEADS * WIDTH))


def bool_mask(g: Graph) -> str:
    return g.op("Cast", g.axes("Unsqueeze", "attention_mask", 1, 2), to=TensorProto.BOOL)


def written_out(g: Graph) -> str:
    """By Expand and Reshape, as exporters write repeated keys."""
    q, k, v = projections(g)
    k, v = (split(g, x, SHARED) for x in (k, v))
    beside = g.ints(1, 1, HEADS // SHARED, 1, 1)
    k, v = (
        g.op(
            "Reshape",
            g.op("Expand", g.axes("Unsqueeze", x, 2), beside),
            g.ints(0, HEADS, -1, WIDTH),
        )
        for x in (k, v)
    )
    keys = g.op("Transpose", k, perm=[0, 1, 3, 2])
    scores = g.op("Mul", g.op("MatMul", split(g, q, HEADS), keys), g.array(WIDTH**-0.5))
    scores = g.op("Where", bool_mask(g), scores, g.array(-1e9))
    return joined(g, g.op("MatMul", g.op("Softmax", scores, axis=-1), v))


def low_scores(g: Graph) -> str:
    """What is added to the scores, for every query."""
    return g.over_queries(g.op("Where", bool_mask(g), g.array(0.0), g.array(-1e9)))


def by_heads(g: Graph) -> str:
    """ONNX's Attention on heads that are split already."""
    q, k, v = projections(g)
    parts = [split(g, x, heads) for x, heads in ((q, HEADS), (k, SHARED), (v, SHARED))]
    return joined(g, g.op("Attention", *parts, low_scores(g)))


def by_counts_of_heads(g: Graph) -> str:
    """ONNX's Attention on channels of all heads."""
    heads = {"q_num_heads": HEADS, "kv_num_heads": SHARED}
    return g.op("Attention", *projections(g), low_scores(g), scale=0.25, **heads)


def by_runtime(g: Graph, packed: bool = False, **attributes: Any) -> str:
    """ONNX Runtime's GroupQueryAttention, which hides later tokens."""
    counts = g.axes("ReduceSum", "attention_mask", 1, keepdims=0)
    last = g.op("Cast", g.op("Sub", counts, g.array(1, "int64")), to=TensorProto.INT32)
    shape = g.op("Gather", g.op("Shape", "attention_mask"), g.array(1, "int64"), axis=0)
    length = g.op("Cast", shape, to=TensorProto.INT32)
    width = ROTATED if attributes.get("do_rotary") else WIDTH
    if packed:
        operands = [g.linear(g.words(), "self.qkv", (HEADS + 2 * SHARED) * width), "", ""]
    else:
        operands = projections(g, width)
    heads = {"num_heads": HEADS, "kv_num_heads": SHARED, **attributes}
    operands += ["", "", last, length]
    if attributes.get("do_rotary"):
        angles = np.arange(POSITIONS)[:, None] * 0.5 ** np.arange(width // 2)
        operands += [g.array(f(angles), name=f.__name__) for f in (np.cos, np.sin)]
    return g.ops("GroupQueryAttention", *operands, outputs=3, **heads, **ORT)[0]


def attributes_of(model: Any, cap: float = 0.0, width: int = WIDTH) -> dict[str, Any]:
    (call,) = calls_of(model, "attention")
    q, k, v = (int(x.ty.shape.values[-1]) for x in call.args[:3])
    assert (q, k, v) == (HEADS * width, SHARED * width, SHARED * width)
    assert float(call.attrs["cap"]) == cap
    return {name: call.attrs[name] for name in ("num_heads", "before", "after")}


def model_of(g: Graph, context: str, width: int = WIDTH) -> onnx.ModelProto:
    return g.model(g.linear(context, "out", CHANNELS, HEADS * width))


@pytest.mark.parametrize(
    ("write", "opset"), [(written_out, 17), (by_heads, 23), (by_counts_of_heads, 23)]
)
def test_keys_are_shared_however_it_is_written(write: Any, opset: int) -> None:
    g = Graph(opset=opset)
    model = imported(model_of(g, write(g)))
    assert sorted(item.op for item in model.report.matched) == sorted(
        f"canonical.{name}" for name in [*LAYER, "linear"]
    )
    assert attributes_of(model)["num_heads"] == HEADS


@pytest.mark.parametrize("packed", [False, True])
def test_group_query_attention_of_onnx_runtime(packed: bool) -> None:
    g = Graph(opset=17)
    model = imported(model_of(g, by_runtime(g, packed)))
    assert attributes_of(model) == {"num_heads": HEADS, "before": 2**31 - 1, "after": 0}
    folded = [item.what for item in model.report.foldings if item.name == "attention_mask"]
    assert folded == [
        "the source keeps as many tokens from the front as the mask has ones; the mask itself is "
        "used, which is the same where padding is at the end"
    ]


def test_group_query_attention_with_a_window() -> None:
    g = Graph(opset=17)
    model = imported(model_of(g, by_runtime(g, local_window_size=4)))
    assert attributes_of(model) == {"num_heads": HEADS, "before": 3, "after": 0}


def test_group_query_attention_with_a_cap() -> None:
    g = Graph(opset=17)
    model = imported(model_of(g, by_runtime(g, softcap=5.0)))
    assert attributes_of(model, cap=5.0)["after"] == 0


@pytest.mark.parametrize(
    ("packed", "interleaved"),
    examples([(p, i) for p in (0, 1) for i in (0, 1)], (1, 0), unpack=True),
)
def test_group_query_attention_with_rotations(packed: int, interleaved: int) -> None:
    g = Graph(opset=17)
    context = by_runtime(g, bool(packed), do_rotary=1, rotary_interleaved=interleaved)
    model = imported(model_of(g, context, ROTATED))
    assert [item.op for item in model.report.matched].count("canonical.rotate") == 2
    assert attributes_of(model, width=ROTATED)["after"] == 0


def refusal(g: Graph, context: str) -> str:
    with pytest.raises(UnsupportedModelError) as error:
        import_onnx_model(model_of(g, context), source="by hand", verify=False)
    return error.value.why


def test_one_more_term_in_the_softmax_is_refused(messages: Messages) -> None:
    g = Graph(opset=17)
    messages.check(refusal(g, by_runtime(g, smooth_softmax=1)))


def test_lengths_that_are_not_counted_are_refused(messages: Messages) -> None:
    g = Graph(opset=17)
    last = g.op("ReduceSum", g.op("Cast", "input_ids", to=TensorProto.INT32), g.ints(1), keepdims=0)
    length = g.array(13, "int32")
    heads = {"num_heads": HEADS, "kv_num_heads": SHARED}
    operands = [*projections(g), "", "", last, length]
    context = g.ops("GroupQueryAttention", *operands, outputs=3, **heads, **ORT)[0]
    messages.check(refusal(g, context))


def test_heads_that_share_keys_must_be_neighbours(messages: Messages) -> None:
    """All heads, and then all of them again."""
    g = Graph(opset=17)
    q, k, v = projections(g)
    k, v = (split(g, x, SHARED) for x in (k, v))
    again = g.ints(1, HEADS // SHARED, 1, 1, 1)
    k, v = (
        g.op(
            "Reshape", g.op("Expand", g.axes("Unsqueeze", x, 1), again), g.ints(0, HEADS, -1, WIDTH)
        )
        for x in (k, v)
    )
    scores = g.op("MatMul", split(g, q, HEADS), g.op("Transpose", k, perm=[0, 1, 3, 2]))
    scores = g.op("Where", bool_mask(g), scores, g.array(-1e9))
    context = joined(g, g.op("MatMul", g.op("Softmax", scores, axis=-1), v))
    messages.check(refusal(g, context))
