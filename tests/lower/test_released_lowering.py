"""The rules of the preset ``released``: what they refuse, and what no golden model shows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ibert_tvm.relay_passes.canonical import build
from ibert_tvm.relay_passes.errors import LoweringError
from ibert_tvm.relay_passes.lower import lower_to_integer, requirements
from ibert_tvm.relay_passes.lower.rule import rules_of
from ibert_tvm.relay_passes.quantization_table import (
    ActivationQuant,
    QuantizationTable,
    QuantizationTableError,
    WeightQuant,
)
from tests.lower.modules import function, tensor, token_inputs

CHANNELS = 4
BYTE = ActivationQuant(0.05, -128, 127)
OTHER_BYTE = ActivationQuant(0.04, -128, 127)
SUM = ActivationQuant(2.0**-16, -(2**21), 2**21 - 1)


def matrix(rows: int = CHANNELS, scale=0.01) -> WeightQuant:
    values = np.arange(rows * CHANNELS).reshape(rows, CHANNELS) % 200 - 100
    return WeightQuant(values.astype(np.int8), np.full(rows, scale))


@pytest.fixture(scope="module")
def block():
    return block_with()


def block_with(rows=(), **window):
    """Embedding, attention, residual, layer norm, GELU: one of every rule."""
    ids, mask = token_inputs()
    arrays = {"words": np.zeros((9, CHANNELS), np.float32)}
    for name in ("q", "k", "v", "up"):
        arrays |= {f"{name}.w": np.zeros((CHANNELS, CHANNELS), np.float32)}
        arrays |= {f"{name}.b": np.full(CHANNELS, 0.25, np.float32)}
    shape = (*rows, CHANNELS)
    arrays |= {"n.g": np.full(shape, 2.0, np.float32), "n.b": np.ones(shape, np.float32)}
    w = {name: tensor(name, array.shape) for name, array in arrays.items()}

    def body(emit):
        x = emit(build.embedding(w["words"], ids, name="x"))
        q, k, v = (emit(build.linear(x, w[f"{n}.w"], w[f"{n}.b"], name=n)) for n in ("q", "k", "v"))
        c = emit(build.attention(q, k, v, mask, name="c", num_heads=2, scale=0.5**0.5, **window))
        s = emit(build.add(c, x, name="s"))
        n = emit(build.layer_norm(s, w["n.g"], w["n.b"], name="n", epsilon=1e-12))
        up = emit(build.linear(n, w["up.w"], w["up.b"], name="up"))
        g = emit(build.gelu(up, name="g"))
        return emit(build.add(g, n, name="t"))

    module = function([ids, mask], list(w.values()), body)
    table = QuantizationTable(
        "released",
        matmul={name: BYTE for name in ("x", "q", "k", "v", "c", "g")} | {"n": OTHER_BYTE},
        stream={
            "s": SUM,
            "t": SUM,
            "n": BYTE,
            "c.exponential": ActivationQuant(1e8, -(2**15), 2**15 - 1),
        },
        weights={name: matrix() for name in ("q", "k", "v", "up")},
        embeddings={"x": matrix(9)},
        grids={"n": BYTE, "g": OTHER_BYTE},
        norm_shifts={"n": 3},
    )
    return module, arrays, table


def test_biases_are_rounded_in_float32_halves_to_even(block):
    module, arrays, table = block
    changed = {**arrays, "q.b": np.array([2.5, 3.5, -2.5, 0.0], np.float32) * np.float32(5e-4)}
    exact = replace(table, weights={**table.weights, "q": matrix(scale=0.01)})
    lowered = lower_to_integer(module, changed, exact)
    unit = np.float32(1.0) / (np.float32(0.05) * np.float32(0.01))
    want = np.rint(unit * changed["q.b"])
    assert lowered.parameters["q.b"].tolist() == want.tolist()


def test_only_the_released_preset_has_these_rules():
    paper, released = rules_of("paper"), rules_of("released")
    assert sorted(released) == sorted(paper)
    own = [op for op in released if released[op] is not paper[op]]
    names = ("add", "attention", "embedding", "gelu", "layer_norm", "linear")
    assert own == [f"canonical.{name}" for name in names]


def test_the_exponentials_need_a_scale(block, messages):
    module, arrays, table = block
    stream = {name: quant for name, quant in table.stream.items() if name != "c.exponential"}
    with messages.raises(LoweringError):
        lower_to_integer(module, arrays, replace(table, stream=stream))


def test_a_window_is_refused(messages):
    with messages.raises(LoweringError):
        lower_to_integer(*block_with(after=0))


def test_rows_of_a_table_share_a_scale(block, messages):
    module, arrays, table = block
    rows = matrix(9)
    mixed = WeightQuant(rows.values, np.linspace(0.01, 0.02, 9))
    with messages.raises(LoweringError):
        lower_to_integer(module, arrays, replace(table, embeddings={"x": mixed}))


def test_a_zero_point_is_refused(block, messages):
    module, arrays, table = block
    shifted = ActivationQuant(0.05, -128, 127, 4)
    with messages.raises(LoweringError):
        lower_to_integer(module, arrays, replace(table, matmul={**table.matmul, "x": shifted}))


def test_sums_have_22_bits_in_this_preset_only(messages):
    wide = {"s": ActivationQuant(1.0, -(2**21), 2**21)}
    assert QuantizationTable("released", stream={"s": SUM}).stream["s"] is SUM
    with messages.raises(QuantizationTableError):
        QuantizationTable("released", stream={"s": ActivationQuant(1.0, -(2**22), 2**21)})
    with pytest.raises(QuantizationTableError):
        QuantizationTable("paper", stream=wide)


def test_norms_of_heads_are_refused(messages):
    with messages.raises(LoweringError):
        lower_to_integer(*block_with(rows=(1,)))


def test_requirements_name_the_forms(block):
    needed = requirements(block[0], "released")
    assert [name for name, value in needed.items() if value.matmul] == [
        "x",
        "q",
        "k",
        "v",
        "c",
        "n",
    ]
    assert [name for name, value in needed.items() if value.stream] == ["s", "t"]
