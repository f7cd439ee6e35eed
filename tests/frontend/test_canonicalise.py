"""Linear layers, activations, embeddings and pooling in the spellings that importers leave."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax
from tvm.relax import op

from ibert_tvm.frontend.canonicalise import canonicalise
from ibert_tvm.frontend.errors import UnsupportedModelError
from ibert_tvm.relay_passes.canonical import FloatModel, value_name
from tests.frontend.imports import calls_of, op_of
from tests.frontend.relax_models import (
    BATCH,
    CHANNELS,
    HEADS,
    LENGTH,
    WIDTH,
    Source,
    canonical_of,
    module_of,
    padded_batch,
    run_source,
)


def f32(value: float) -> relax.Expr:
    return relax.const(value, "float32")


def check(body, expected: list[tuple[str, str]], inputs=("input_ids", "attention_mask")):
    """Canonicalise, compare (operator, name) of every value, and the outputs with the source's."""
    result = canonical_of(body, inputs)
    assert [(op_of(call), value_name(call)) for call in calls_of(result)] == expected
    batch = {name: padded_batch().get(name, padded_batch()["input_ids"]) for name in inputs}
    outputs = FloatModel(result.module, result.parameters).run(batch).outputs
    for have, want in zip(outputs, run_source(body, batch, inputs), strict=True):
        np.testing.assert_allclose(have, want, atol=5e-6)
    return result


def flat_linear(s: Source) -> relax.Expr:
    """Torch's: flatten, matmul with a transposed weight, bias on the left, back to three axes."""
    x = s.emit(op.reshape(s.words(), [BATCH * LENGTH, CHANNELS]))
    weight = s.emit(op.permute_dims(s.weight("dense.weight", 5, CHANNELS), [1, 0]))
    y = s.emit(op.add(s.weight("dense.bias", 5), s.emit(op.matmul(x, weight))))
    return s.emit(op.reshape(y, [BATCH, LENGTH, 5]))


def broadcast_linear(s: Source) -> relax.Expr:
    weight = s.emit(op.permute_dims(s.weight("dense.weight", 5, CHANNELS), [1, 0]))
    weight = s.emit(op.broadcast_to(weight, [BATCH, CHANNELS, 5]))
    return s.emit(op.add(s.emit(op.matmul(s.words(), weight)), s.weight("dense.bias", 5)))


def conv1d_linear(s: Source) -> relax.Expr:
    """GPT's and ONNX's: the weight is [inputs, outputs] already."""
    y = s.emit(op.matmul(s.words(), s.weight("dense.weight", CHANNELS, 5)))
    return s.emit(op.add(y, s.weight("dense.bias", 5)))


@pytest.mark.parametrize("body", [flat_linear, broadcast_linear, conv1d_linear])
def test_linear_layers(body):
    result = check(body, [("embedding", "words"), ("linear", "dense")])
    assert result.parameters["dense.weight"].shape == (5, CHANNELS)
    assert result.outputs == (("dense", 3),)


def test_a_linear_layer_without_bias_gets_zeros():
    def body(s: Source) -> relax.Expr:
        weight = s.emit(op.permute_dims(s.weight("dense.weight", 5, CHANNELS)))
        return s.emit(op.matmul(s.words(), weight))

    result = check(body, [("embedding", "words"), ("linear", "dense")])
    np.testing.assert_array_equal(result.parameters["dense.bias"], 0)
    assert [f.what for f in result.report.foldings] == ["the source has no bias: zeros"]


def test_a_scale_after_a_linear_layer_moves_into_its_weights():
    def body(s: Source) -> relax.Expr:
        return s.emit(op.multiply(s.linear(s.words(), "dense", 5), f32(-0.5)))

    result = check(body, [("embedding", "words"), ("linear", "dense")])
    assert [f.what for f in result.report.foldings] == ["factor -0.5 moved to the weights"]


@pytest.mark.representatives(1)
@pytest.mark.parametrize("axis", ["last", "middle"])
def test_fused_queries_keys_and_values_are_cut_apart(axis):
    def body(s: Source) -> relax.Expr:
        x = s.words()
        fused = s.linear(x, "qkv", 3 * CHANNELS)
        if axis == "last":
            parts = s.emit(op.split(fused, 3, axis=-1))
            q, k, v = (s.heads(s.emit(relax.TupleGetItem(parts, i))) for i in range(3))
        else:
            split = s.emit(op.reshape(fused, [BATCH, LENGTH, 3, HEADS, WIDTH]))
            first = s.emit(op.permute_dims(split, [2, 0, 3, 1, 4]))
            q, k, v = (s.emit(op.take(first, relax.const(i, "int64"), axis=0)) for i in range(3))
        scores = s.emit(op.matmul(q, s.emit(op.permute_dims(k, [0, 1, 3, 2]))))
        mask = s.emit(op.reshape(s.emit(op.astype(s.mask, "bool")), [BATCH, 1, 1, LENGTH]))
        scores = s.emit(op.where(mask, scores, f32(-1e9)))
        context = s.emit(op.matmul(s.emit(op.nn.softmax(scores)), v))
        joined = s.emit(op.permute_dims(context, [0, 2, 1, 3]))
        return s.emit(op.reshape(joined, [BATCH, LENGTH, CHANNELS]))

    result = check(
        body,
        [
            ("embedding", "words"),
            ("linear", "qkv[0:32]"),
            ("linear", "qkv[32:64]"),
            ("linear", "qkv[64:96]"),
            ("attention", "qkv.attention"),
        ],
    )
    assert set(result.parameters) >= {"qkv.weight[0:32]", "qkv.bias[64:96]"}


def test_a_gate_is_a_product():
    def body(s: Source) -> relax.Expr:
        x = s.words()
        gate = s.emit(op.nn.silu(s.linear(x, "gate", 20)))
        half = s.emit(op.multiply(s.linear(x, "up", 20), f32(0.5)))
        return s.linear(s.emit(op.multiply(half, gate)), "down", 5)

    gated = [("linear", "gate"), ("silu", "gate.silu"), ("linear", "up")]
    expected = [("embedding", "words"), *gated, ("multiply", "up.multiply")]
    result = check(body, [*expected, ("linear", "down")])
    folded = [(item.name, item.what) for item in result.report.foldings]
    assert ("up", "factor 0.5 moved to the weights") in folded


def test_a_sum_of_a_tensor_and_its_activation_may_be_flattened_and_read_twice():
    def body(s: Source) -> tuple[relax.Expr, ...]:
        x = s.linear(s.words(), "up", 20)
        y = s.emit(op.add(x, s.emit(op.nn.relu(x))))
        flat = s.emit(op.reshape(y, [BATCH * LENGTH, 20]))
        weight = s.emit(op.permute_dims(s.weight("a.weight", 5, 20)))
        product = s.emit(op.add(s.emit(op.matmul(flat, weight)), s.weight("a.bias", 5)))
        return s.emit(op.reshape(product, [BATCH, LENGTH, 5])), s.linear(y, "b", 3)

    check(
        body,
        [
            ("embedding", "words"),
            ("linear", "up"),
            ("relu", "up.relu"),
            ("add", "up.relu.add"),
            ("linear", "a"),
            ("linear", "b"),
        ],
    )


def test_the_tanh_form_may_be_reshaped_half_way():
    def body(s: Source) -> relax.Expr:
        x = s.linear(s.words(), "up", 20)
        flat = s.emit(op.reshape(x, [BATCH * LENGTH, 20]))
        cube = s.emit(op.multiply(s.emit(op.power(x, f32(3.0))), f32(0.044715)))
        inner = s.emit(op.reshape(s.emit(op.add(x, cube)), [BATCH * LENGTH, 20]))
        inner = s.emit(op.multiply(inner, f32(0.7978845608028654)))
        curve = s.emit(op.add(s.emit(op.tanh(inner)), f32(1.0)))
        y = s.emit(op.multiply(s.emit(op.multiply(f32(0.5), flat)), curve))
        return s.emit(op.reshape(y, [BATCH, LENGTH, 20]))

    check(body, [("embedding", "words"), ("linear", "up"), ("gelu", "up.gelu")])


def test_layer_norm_without_weights_gets_ones_and_zeros():
    def body(s: Source) -> relax.Expr:
        ones = relax.const(np.ones(CHANNELS, np.float32))
        zeros = relax.const(np.zeros(CHANNELS, np.float32))
        return s.emit(op.nn.layer_norm(s.words(), ones, zeros, axes=[-1], epsilon=1e-3))

    result = check(body, [("embedding", "words"), ("layer_norm", "words.layer_norm")])
    assert set(result.parameters) == {
        "words.weight",
        "words.layer_norm.weight",
        "words.layer_norm.bias",
    }


def test_a_constant_token_type_is_folded_into_the_words():
    def body(s: Source) -> relax.Expr:
        zeros = s.emit(op.zeros([BATCH, LENGTH], "int64"))
        kind = s.emit(op.take(s.weight("kinds.weight", 2, CHANNELS), zeros, axis=0))
        return s.emit(op.add(s.words(), kind))

    result = check(body, [("embedding", "words")])
    assert [(f.name, f.what) for f in result.report.foldings] == [
        ("kinds.weight", "row 0 is used for every token: a constant"),
        ("words.weight", "kinds.weight[0] added to every row"),
    ]


def test_tied_weights_are_one_parameter_and_two_values():
    def body(s: Source) -> relax.Expr:
        x = s.linear(s.words(), "shared")
        return s.linear(s.emit(op.nn.relu(x)), "shared")

    result = check(
        body,
        [
            ("embedding", "words"),
            ("linear", "shared"),
            ("relu", "shared.relu"),
            ("linear", "shared#2"),
        ],
    )
    assert set(result.parameters) == {"words.weight", "shared.weight", "shared.bias"}


def test_several_outputs_and_dead_code():
    def body(s: Source) -> tuple[relax.Expr, ...]:
        x = s.words()
        s.emit(op.sin(x))  # nobody needs it
        return s.linear(x, "a", 5), s.linear(x, "b", 1)

    result = check(body, [("embedding", "words"), ("linear", "a"), ("linear", "b")])
    assert result.outputs == (("a", 3), ("b", 3))
    assert result.report.refusals == []


def test_canonicalising_twice_gives_the_same_module():
    import tvm

    first, second = canonical_of(flat_linear), canonical_of(flat_linear)
    tvm.ir.assert_structural_equal(first.module, second.module)


def test_the_report_counts_source_operators():
    report = canonical_of(flat_linear).report
    assert [(m.op, m.name, m.source_ops) for m in report.matched] == [
        ("canonical.embedding", "words", ("relax.take",)),
        ("canonical.linear", "dense", ("relax.reshape", "relax.matmul", "relax.add")),
    ]
    assert str(report).splitlines()[:3] == [
        "Matched:",
        "  canonical.embedding         1  from 1 source operators",
        "  canonical.linear            1  from 3 source operators",
    ]


def unary(operator):
    return lambda s: s.linear(s.emit(operator(s.linear(s.words(), "up", 20))), "down", 5)


REFUSED = {
    "unknown function": unary(op.sin),
    "unknown operator": unary(lambda x: op.cumsum(x, 1)),
    "softmax of channels": unary(lambda x: op.nn.softmax(x, -1)),
    "plain mean": lambda s: s.emit(op.mean(s.linear(s.words(), "up", 20), 1)),
    "difference": lambda s: s.emit(
        op.subtract(s.linear(s.words(), "a", 5), s.linear(s.words(), "b", 5))
    ),
    "last token": lambda s: s.emit(op.take(s.words(), relax.const(-1, "int64"), axis=1)),
    "positions of the probe": lambda s: s.emit(op.add(s.words(), s.weight("p.weight", 13, 32))),
    "constant ids": lambda s: s.emit(
        op.take(s.weight("p.weight", 40, 32), relax.const(np.arange(13) * 2), axis=0)
    ),
    "computed ids": lambda s: s.emit(
        op.take(s.weight("p.weight", 40, 32), s.emit(op.multiply(s.ids, s.ids)), axis=0)
    ),
    "normalised tokens": lambda s: s.emit(
        op.nn.layer_norm(
            s.emit(op.permute_dims(s.words(), [0, 2, 1])),
            s.weight("n.weight", LENGTH),
            s.weight("n.bias", LENGTH),
            axes=[-1],
        )
    ),
    "half precision": lambda s: s.emit(op.astype(s.linear(s.words(), "a", 5), "float16")),
    "output layout": lambda s: s.emit(op.permute_dims(s.linear(s.words(), "a", 5), [0, 2, 1])),
    "unmasked sum": lambda s: s.emit(op.sum(s.words(), 1)),
    "constant output": lambda s: s.emit(
        op.take(s.weight("p.weight", 40, 32), s.emit(op.zeros([BATCH, LENGTH], "int64")), axis=0)
    ),
}


@pytest.mark.slow_cases(11)
@pytest.mark.representatives(3)
@pytest.mark.parametrize("case", REFUSED, ids=str)
def test_what_has_no_integer_form_is_refused_by_name(case, messages):
    with messages.raises(UnsupportedModelError):
        canonical_of(REFUSED[case])


def test_the_probe_shape_has_to_tell_axes_apart(messages):
    module, source = module_of(flat_linear)
    square = relax.Var("input_ids", relax.TensorType([4, 4], "int64"))
    module["main"] = relax.Function(
        [square, *module["main"].params[1:]], module["main"].body, module["main"].ret_ty
    )
    with messages.raises(UnsupportedModelError):
        canonicalise(module, source.arrays, inputs=("input_ids",))
