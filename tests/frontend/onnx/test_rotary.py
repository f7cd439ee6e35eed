"""RotaryEmbedding of ONNX Runtime and of operator set 23, against ONNX Runtime and onnx itself."""

from __future__ import annotations

import numpy as np
import pytest

from ibert_tvm.frontend import UnsupportedModelError
from ibert_tvm.frontend.onnx.importing import import_onnx_model
from tests.examples import examples
from tests.frontend.onnx.graphs import HEADS, POSITIONS, WIDTH, Graph
from tests.frontend.onnx.test_fused import ORT
from tests.frontend.onnx.test_spellings import imported, ops
from tests.snapshots import Messages

CASES = [(kind, pairs, part) for kind in ("ort", "onnx") for pairs in (0, 1) for part in (0, 1)]


def rotary(kind: str, interleaved: int, columns: int = WIDTH, **attributes):
    """One attention with queries and keys that are turned."""
    g = Graph(opset=23 if kind == "onnx" else 17)
    x = g.words()
    q, k, v = (g.linear(x, name) for name in "qkv")
    angles = np.arange(POSITIONS)[:, None] * 0.5 ** np.arange(columns // 2)
    tables = [g.array(f(angles), name=name) for name, f in (("cos", np.cos), ("sin", np.sin))]
    length = g.op("Gather", g.op("Shape", "input_ids"), g.array(1, "int64"), axis=0)
    zero, one = g.array(0, "int64"), g.array(1, "int64")
    row = g.axes("Unsqueeze", g.op("Range", zero, length, one), 0)
    places = g.op("Expand", row, g.op("Shape", "input_ids"))
    given = {"interleaved": interleaved, "num_heads": HEADS, **attributes}
    if columns < WIDTH:
        given["rotary_embedding_dim"] = columns
    if kind == "ort":
        q, k = (g.op("RotaryEmbedding", y, places, *tables, **given, **ORT) for y in (q, k))
    else:
        q, k = (g.op("RotaryEmbedding", y, *tables, places, **given) for y in (q, k))
    q, k, v = (g.heads(y) for y in (q, k, v))
    scores = g.op("MatMul", q, g.op("Transpose", k, perm=[0, 1, 3, 2]))
    scores = g.op("Mul", scores, g.array(WIDTH**-0.5))
    mask = g.op("Cast", g.axes("Unsqueeze", "attention_mask", 1, 2), to=1)
    low = g.op("Mul", g.op("Sub", g.array(1.0), mask), g.array(-1e9))
    weights = g.op("Softmax", g.op("Add", scores, low), axis=-1)
    return g.model(g.joined(g.op("MatMul", weights, v)))


@pytest.mark.parametrize(
    ("kind", "interleaved", "part"), examples(CASES, ("ort", 0, 0), ("onnx", 1, 0), unpack=True)
)
def test_rotary_embedding(kind: str, interleaved: int, part: int) -> None:
    model = imported(rotary(kind, interleaved, WIDTH // 2 if part else WIDTH))
    assert ops(model).count("rotate") == 2
    assert model.info.max_sequence_length == POSITIONS


def test_a_scale_is_refused(messages: Messages) -> None:
    with messages.raises(UnsupportedModelError):
        import_onnx_model(rotary("ort", 0, scale=2.0), source="by hand", verify=False)
