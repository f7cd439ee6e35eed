"""Lowering of attention: windows, biases and masks, and heads that share keys."""

from __future__ import annotations

import numpy as np
import pytest

from ibert_tvm.relay_passes.canonical import build
from ibert_tvm.relay_passes.errors import RangeError
from ibert_tvm.relay_passes.quantization_table import ActivationQuant, WeightQuant
from tests.lower.lowering import INT8, LINEAR, MATRIX, STREAM, lower, records


def attention(emit, x, w, *operands, **attributes):
    """Attention of three products with one matrix."""
    q, k, v = (emit(build.linear(x, w["up.weight"], w["up.bias"], name=n)) for n in "qkv")
    return emit(build.attention(q, k, v, *operands, name="y", scale=0.5, **attributes))


TABLE = {"matmul": dict.fromkeys("xqkvy", INT8), "matrices": dict.fromkeys("qkv", MATRIX)}


def biased(table: np.ndarray, preset: str, **window: int):
    """Lower attention with a bias; its scores have the scale 2^-9."""
    return lower(
        lambda emit, x, mask, w: attention(emit, x, w, mask, w["table"], num_heads=3, **window),
        {**LINEAR, "table": table},
        preset=preset,
        **TABLE,
        stream={"y": STREAM},
    )


@pytest.mark.parametrize("preset", ["accurate", "paper"])
def test_a_window_is_kept_and_a_bias_rounded_to_the_scale_of_scores(preset: str) -> None:
    table = np.array([[-1.0, 0.0, 0.001], [0.0009, 2.0, 1 / 3], [0.0, 0.0, -7.0]], np.float32)
    lowered = biased(table, preset, before=1, after=0)
    record = records(lowered)["y"]
    assert (record.OP, record.before, record.after) == ("integer.attention", 1, 0)
    rounded = [[-512, 0, 1], [0, 1024, 171], [0, 0, -3584]]
    np.testing.assert_array_equal(lowered.parameters["y.bias"], np.array(rounded, np.int32))
    assert lowered.parameters["y.bias"].dtype == np.int32


@pytest.mark.parametrize("largest", [2.0**15, np.nan])
def test_a_bias_beyond_the_scores_names_the_layer(largest: float, messages) -> None:
    with messages.raises(RangeError):
        biased(np.array([[0, largest, 0]], np.float32), "accurate")


@pytest.mark.parametrize("masked", [True, False])
def test_outputs_per_token_are_masked_as_attention_is(masked: bool) -> None:
    def body(emit, x, mask, w):
        y = attention(emit, x, w, *([mask] if masked else []), num_heads=1)
        return emit(build.select_token(y, name="one")), y

    lowered = lower(body, LINEAR, **TABLE, stream={"y": STREAM, "one": STREAM})
    found = [n for n, record in records(lowered).items() if record.OP == "integer.mask_tokens"]
    assert found == (["y.masked"] if masked else [])
    outputs = [output["value"] for output in lowered.scales["outputs"]]
    assert outputs == ["one", "y.masked" if masked else "y"]


def test_values_that_are_shared_bring_their_scales_to_every_head() -> None:
    widths = {"q": 4, "k": 2, "v": 2}
    values = ActivationQuant(2.0**-4, -127, 127, 0, np.array([1.0, 0.5]))
    context = ActivationQuant(2.0**-5, -127, 127, 0, np.array([1.0, 1.0, 2.0, 1.0]))
    weights = {}
    for name, width in widths.items():
        weights[f"{name}.weight"] = np.zeros((width, 2), np.float32)
        weights[f"{name}.bias"] = np.zeros(width, np.float32)

    def body(emit, x, mask, w):
        q, k, v = (emit(build.linear(x, w[f"{n}.weight"], w[f"{n}.bias"], name=n)) for n in "qkv")
        return emit(build.attention(q, k, v, mask, name="y", num_heads=2, scale=0.5))

    lowered = lower(
        body,
        weights,
        matmul={"x": INT8, "q": INT8, "k": INT8, "v": values, "y": context},
        matrices={n: WeightQuant(np.ones((w, 2), np.int8), np.ones(w)) for n, w in widths.items()},
        stream={"y": STREAM},
    )
    ratios = np.array([2.0, 1.0, 1.0, 1.0])  # S_v / S_out
    np.testing.assert_array_equal(lowered.parameters["y.multiplier"], 2.0**13 * ratios)
