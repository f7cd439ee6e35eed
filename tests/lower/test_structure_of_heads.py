"""Lowering of heads that share keys, and of norms of heads."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ibert_tvm.relay_passes.canonical import build
from ibert_tvm.relay_passes.integer.relax_ops import is_integer_op, operator_of
from ibert_tvm.relay_passes.lower import requirements
from ibert_tvm.relay_passes.lower.forms import Form
from ibert_tvm.relay_passes.lower.rules.norms import fits_short
from ibert_tvm.relay_passes.passes.program import bindings
from ibert_tvm.relay_passes.quantization_table import ActivationQuant, WeightQuant
from tests.lower.expected import INT8, LINEAR, LINEAR_TABLE, STREAM, linear, lower
from tests.lower.modules import function, tensor, token_inputs

WIDTHS = {"q": 4, "k": 2, "v": 2}


def test_values_that_are_shared_bring_their_scales_to_every_head() -> None:
    values = ActivationQuant(2.0**-4, -127, 127, 0, np.array([1.0, 0.5]))
    context = ActivationQuant(2.0**-5, -127, 127, 0, np.array([1.0, 1.0, 2.0, 1.0]))
    weights = {}
    for name, width in WIDTHS.items():
        weights[f"{name}.weight"] = np.zeros((width, 2), np.float32)
        weights[f"{name}.bias"] = np.zeros(width, np.float32)

    def body(emit, x, mask, w):
        q, k, v = (emit(build.linear(x, w[f"{n}.weight"], w[f"{n}.bias"], name=n)) for n in "qkv")
        return emit(build.attention(q, k, v, mask, name="y", num_heads=2, scale=0.5))

    lowered = lower(
        body,
        weights,
        matmul={"x": INT8, "q": INT8, "k": INT8, "v": values, "y": context},
        matrices={n: WeightQuant(np.ones((w, 2), np.int8), np.ones(w)) for n, w in WIDTHS.items()},
        stream={"y": STREAM},
    )
    ratios = np.array([2.0, 1.0, 1.0, 1.0])  # S_v / S_out
    multiplier = lowered.parameters["y.multiplier"]
    np.testing.assert_array_equal(multiplier, 2.0**13 * ratios)


def test_rows_of_15_bits_are_taken_as_such_where_a_requantisation_leaves_the_clamp() -> None:
    rows = ActivationQuant(2.0**-9, -(2**14 - 1), 2**14 - 1)
    unclamped = Form(tensor("x", (1,)), "x", np.array([2.0**-9]), 0, 2**15 - 1)
    assert fits_short(unclamped, rows)
    assert not fits_short(unclamped, None)
    assert not fits_short(replace(unclamped, scale=np.array([2.0**-10])), rows)
    assert fits_short(replace(unclamped, magnitude=2**14 - 1), None)


@pytest.mark.parametrize("kind", ["rms_norm", "layer_norm"])
def test_weights_of_heads_keep_their_shape(kind: str) -> None:
    names = ("n.weight", "n.bias")[: 1 + (kind == "layer_norm")]
    lowered = lower(
        lambda emit, x, mask, w: emit(
            getattr(build, kind)(linear(emit, x, w), *map(w.get, names), name="y", epsilon=1e-5)
        ),
        {**LINEAR, **{name: np.ones((1, 3), np.float32) for name in names}},
        **LINEAR_TABLE,
        stream={"up": ActivationQuant(2.0**-9, -(2**14 - 1), 2**14 - 1), "y": STREAM},
    )
    calls = [binding.value for binding in bindings(lowered.module["main"])]
    found = {operator_of(call).name: operator_of(call).OP for call in calls if is_integer_op(call)}
    assert found["y"] == f"integer.{kind}_short"
    assert [lowered.parameters[name].shape for name in names] == [(1, 3)] * len(names)


def needed(shape, preset: str = "accurate"):
    ids, mask = token_inputs()
    arrays = {
        "words.weight": np.zeros((3, 2), np.float32),
        **LINEAR,
        "n.weight": np.ones(shape, np.float32),
    }
    variables = {name: tensor(name, array.shape) for name, array in arrays.items()}

    def whole(emit):
        x = emit(build.embedding(variables["words.weight"], ids, name="x"))
        up = linear(emit, x, variables)
        return emit(build.rms_norm(up, variables["n.weight"], name="y", epsilon=1e-5))

    return requirements(function([ids, mask], list(variables.values()), whole), preset)


def test_norms_of_heads_ask_for_rows_of_15_bits() -> None:
    wish = needed((1, 3))["up"].stream_for
    assert wish is not None
    assert (wish(8.0).scale, wish(8.0).high) == (8.0 / (2**14 - 1), 2**14 - 1)
    assert wish(0.0).scale == 2.0**-6 / (2**14 - 1)
    assert needed((3,))["up"].stream_for is None
    assert needed((1, 3), "paper")["up"].stream_for is None


def test_rows_of_a_table_that_only_matrix_products_read_have_a_stream_form() -> None:
    """Their integers are made at its scale: there was none, and lowering refused the model."""
    assert needed((3,))["x"].stream
