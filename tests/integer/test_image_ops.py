"""Operators of image models: patches, prepended tokens, positions, attention without a mask."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax, tirx

from ibert_tvm.relay_passes import integer
from ibert_tvm.relay_passes.errors import LoweringError
from ibert_tvm.relay_passes.integer.evaluate import evaluate
from ibert_tvm.relay_passes.integer.ranges import analyse_ranges
from ibert_tvm.relay_passes.spec.presets import preset

BATCH = tirx.Var("batch", "int64")


def tensor(name: str, shape: list, dtype: str) -> relax.Var:
    return relax.Var(name, relax.TensorType(shape, dtype))


PIXELS = tensor("pixel_values", [BATCH, 2, 7, 6], "int8")
X = tensor("x", [BATCH, 4, 6], "int32")


def module(inputs, weights, body):
    builder = relax.BlockBuilder()
    with builder.function("main", [*inputs, *weights], attrs={"num_input": len(inputs)}):
        with builder.dataflow():
            out = builder.emit_output(builder.emit(body))
        builder.emit_func_output(out)
    return builder.get()


def test_patches_are_rows_of_convolution_weights_order():
    call = integer.patches(PIXELS, name="p", patch_height=3, patch_width=2)
    made = module([PIXELS], [], call)
    pixels = np.random.default_rng(0).integers(-128, 128, (2, 2, 7, 6)).astype("int8")
    (out,) = evaluate(made, {"pixel_values": pixels}, {})
    assert (out.dtype, out.shape) == (np.int8, (2, 6, 12))  # the last row of pixels is left out
    np.testing.assert_array_equal(out[1, 4], pixels[1, :, 3:6, 2:4].reshape(-1))
    assert analyse_ranges(made, {}).values == {"p": (-128, 127)}


def test_learned_rows_go_before_a_sequence_and_onto_it():
    tokens, table = tensor("tokens", [2, 6], "int32"), tensor("table", [4, 6], "int32")
    random = np.random.default_rng(1)
    x = random.integers(-900, 900, (3, 4, 6)).astype("int32")
    arrays = {
        "tokens": random.integers(-5000, 5000, (2, 6)).astype("int32"),
        "table": random.integers(-500, 500, (4, 6)).astype("int32"),
    }
    made = module([X], [tokens], integer.prepend_tokens(X, tokens, name="t"))
    (out,) = evaluate(made, {"x": x}, arrays)
    assert out.shape == (3, 6, 6)
    np.testing.assert_array_equal(out[2], np.concatenate([arrays["tokens"], x[2]]))
    made = module([X], [table], integer.add_positions(X, table, name="a"))
    (out,) = evaluate(made, {"x": x}, arrays)
    np.testing.assert_array_equal(out, x + arrays["table"])


@pytest.mark.parametrize("name", ["accurate", "paper"])
def test_attention_without_a_mask_is_that_with_all_tokens(name):
    chosen = preset(name)
    shape = [BATCH, 5, 8]
    q, k, v = (tensor(label, shape, "int8") for label in "qkv")
    mask = tensor("mask", [BATCH, 5], "int32")
    short = name == "accurate"
    dtype, shift, low, high = ("int16", 7, 9000, 30000) if short else ("int32", 14, 20, 60)
    multiplier = tensor("m", [8], dtype)
    attrs = {
        "name": "a",
        "num_heads": 2,
        "softmax": chosen.softmax,
        "exponential": chosen.exponential_for(0.01),
        "shift": shift,
        "low": -127,
        "high": 127,
    }
    random = np.random.default_rng(2)
    arrays = {n: random.integers(-127, 128, (3, 5, 8)).astype("int8") for n in "qkv"}
    arrays["mask"] = np.ones((3, 5), np.int32)
    weights = {"m": random.integers(low, high, 8).astype(dtype)}
    results = []
    for inputs in ([q, k, v], [q, k, v, mask]):
        call = integer.attention(q, k, v, mask if mask in inputs else None, multiplier, **attrs)
        made = module(inputs, [multiplier], call)
        results.append(evaluate(made, arrays, weights)[0])
        analyse_ranges(made, weights)
    np.testing.assert_array_equal(*results)
    assert np.unique(results[0]).size > 5


def test_mean_of_all_tokens():
    mask = tensor("mask", [BATCH, 4], "int32")
    x = np.random.default_rng(3).integers(-900, 900, (3, 4, 6)).astype("int32")
    outs = [
        evaluate(
            module(inputs, [], integer.mean_pool(*inputs, name="m", fraction_bits=4)),
            {"x": x, "mask": np.ones((3, 4), np.int32)},
            {},
        )[0]
        for inputs in ([X], [X, mask])
    ]
    np.testing.assert_array_equal(*outs)
    np.testing.assert_allclose(outs[0] / 16, x.mean(axis=1), atol=0.05)


@pytest.mark.parametrize(
    "call",
    [
        lambda: integer.patches(PIXELS, name="p", patch_height=8, patch_width=2),
        lambda: integer.prepend_tokens(X, tensor("t", [1, 5], "int32"), name="t"),
        lambda: integer.add_positions(X, tensor("t", [3, 6], "int32"), name="t"),
    ],
)
def test_operands_that_do_not_fit(call, messages):
    with messages.raises(LoweringError):
        call()
