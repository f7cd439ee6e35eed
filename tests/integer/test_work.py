"""Counting multiply-accumulates of an integer function."""

from __future__ import annotations

from tvm import relax

from ibert_tvm.relay_passes import integer
from ibert_tvm.relay_passes.integer.relax_ops import multiply_accumulates
from ibert_tvm.relay_passes.spec.short_softmax import ShortExponential

BATCH, SEQ, CHANNELS, HEADS = 3, 5, 16, 4


def var(name: str, shape: tuple[int, ...], dtype: str) -> relax.Var:
    return relax.Var(name, relax.TensorType(shape, dtype))


def test_linear_layers_and_both_products_of_attention_are_counted_and_nothing_else() -> None:
    x = var("x", (BATCH, SEQ, CHANNELS), "int8")
    weight = var("weight", (24, CHANNELS), "int8")
    bias = var("bias", (24,), "int32")
    mask = var("mask", (BATCH, SEQ), "int32")
    one = var("one", (1,), "int16")
    builder = relax.BlockBuilder()
    with builder.function("main", [x, weight, bias, mask, one]):
        with builder.dataflow():
            linear = builder.emit(integer.linear(x, weight, bias, name="fc"))
            given = {"softmax": "short", "exponential": ShortExponential.from_scale(1e-3)}
            given |= {"num_heads": HEADS, "shift": 7, "low": -127, "high": 127}
            attended = builder.emit(
                integer.attention(x, x, x, mask, one, name="attention", **given)
            )
            rectified = builder.emit(integer.relu(attended, name="relu"))
            output = builder.emit_output(relax.Tuple([linear, rectified]))
        builder.emit_func_output(output)
    expected = BATCH * SEQ * CHANNELS * 24 + 2 * BATCH * SEQ * SEQ * CHANNELS
    assert multiply_accumulates(builder.get()["main"]) == expected
