"""NumPy evaluation of integer modules."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tvm import relax

from ibert_tvm.relay_passes import integer
from ibert_tvm.relay_passes.errors import LoweringError, RangeError
from ibert_tvm.relay_passes.integer.arrays import exact_matmul
from ibert_tvm.relay_passes.integer.evaluate import evaluate, evaluate_all
from ibert_tvm.relay_passes.spec.short_softmax import ShortExponential
from tests.passes.models import module_of
from tests.snapshots import Messages


def inputs(batch: int, length: int, seed: int = 0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    mask = np.ones((batch, length), np.int64)
    for row in range(batch):
        mask[row, max(1, length - row * 3) :] = 0
    ids = random.integers(2, 30, (batch, length))
    return {"input_ids": np.where(mask, ids, 1), "attention_mask": mask}


@given(st.integers(1, 40), st.sampled_from([3, 127, 40_000, 2**26, 2**28]), st.integers(0, 2**32))
def test_matrix_products_are_exact(depth: int, bound: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    a = random.integers(-bound, bound + 1, (3, depth))
    b = random.integers(-bound, bound + 1, (depth, 2))
    exact = a.astype(object) @ b.astype(object)
    np.testing.assert_array_equal(exact_matmul(a, b), exact.astype(np.int64))


def test_a_product_past_int64_is_refused(messages) -> None:
    a = np.full((1, 4), 2**31)
    with messages.raises(RangeError):
        exact_matmul(a, a.T)


@pytest.mark.parametrize(("batch", "length"), [(1, 1), (3, 17), (2, 22)])
def test_any_batch_and_length(encoder, batch: int, length: int) -> None:
    module, parameters = encoder
    outputs, captured = evaluate_all(module, inputs(batch, length), parameters)
    assert [output.shape for output in outputs] == [(batch, length, 24), (batch, 24), (batch, 24)]
    assert [str(output.dtype) for output in outputs][1:] == ["int32", "int32"]
    assert captured["attention"].dtype == np.int8 and captured["embedding_norm"].dtype == np.int16
    assert captured["mean"] is outputs[1]
    assert evaluate(module, inputs(batch, length), parameters)[1].tolist() == outputs[1].tolist()


def test_padding_never_changes_a_real_token(encoder) -> None:
    module, parameters = encoder
    given = inputs(1, 12)
    given["attention_mask"][0, 9:] = 0
    given["input_ids"][0, 9:] = 1
    short = {name: array[:, :9] for name, array in given.items()}
    _, padded = evaluate_all(module, given, parameters)
    _, exact = evaluate_all(module, short, parameters)
    for name in ("attention", "output_norm", "gelu", "active"):
        np.testing.assert_array_equal(padded[name][:, :9], exact[name])
    np.testing.assert_array_equal(padded["mean"], exact["mean"])


def test_rows_of_a_batch_do_not_touch_each_other(encoder) -> None:
    module, parameters = encoder
    given = inputs(3, 14)
    together = evaluate(module, given, parameters)
    for row in range(3):
        alone = evaluate(module, {n: a[row : row + 1] for n, a in given.items()}, parameters)
        for whole, single in zip(together, alone, strict=True):
            np.testing.assert_array_equal(whole[row : row + 1], single)


def test_a_fully_masked_row_is_defined(encoder) -> None:
    module, parameters = encoder
    given = inputs(2, 10)
    given["attention_mask"][1] = 0
    (_, mean, _), captured = evaluate_all(module, given, parameters)
    np.testing.assert_array_equal(captured["attention"][1], 0)
    np.testing.assert_array_equal(mean[1], 0)


def test_position_ids_of_roberta_count_tokens(builder) -> None:
    module = builder.module(
        lambda b: b.emit(integer.position_ids(b.ids, name="p", kind="roberta", padding_index=1))
    )
    ids = np.array([[5, 7, 1, 9, 1], [1, 1, 4, 4, 4]])
    (got,) = evaluate(module, {"input_ids": ids, "attention_mask": ids}, {})
    assert got.tolist() == [[2, 3, 1, 4, 1], [1, 1, 2, 3, 4]]


def test_position_ids_count_from_an_offset(builder) -> None:
    module = builder.module(lambda b: b.emit(integer.position_ids(b.ids, name="p", offset=2)))
    ids = np.zeros((2, 3), np.int64)
    (got,) = evaluate(module, {"input_ids": ids, "attention_mask": ids}, {})
    assert got.tolist() == [[2, 3, 4]] * 2 and got.dtype == np.int32


def test_linear_equals_integer_arithmetic(builder) -> None:
    def body(b):
        table = b.values("table", 127, (30, 200), "int8")
        one = b.parameter("one", [1], "int32")
        x = b.emit(integer.embedding(b.ids, table, one, name="x", shift=0))
        x8 = b.emit(integer.requantise(x, one, name="x8", shift=0, low=0, high=255, dtype="uint8"))
        weight = b.values("weight", 127, (7, 200), "int8")
        bias = b.values("bias", 10**9, (7,), "int32")
        return x8, b.emit(integer.linear(x8, weight, bias, name="linear"))

    module = builder.module(body)
    x, y = evaluate(module, inputs(2, 5), builder.parameters)
    weight = builder.parameters["weight"].astype(object)
    expected = x.astype(object) @ weight.T + builder.parameters["bias"].astype(object)
    np.testing.assert_array_equal(y, expected.astype(np.int64))
    assert x.dtype == np.uint8


def test_a_value_that_does_not_fit_its_storage_is_refused(builder, messages) -> None:
    def body(b):
        table = b.parameter("table", np.full((30, 4), 127), "int8")
        one = b.parameter("one", [2**30], "int32")
        return b.emit(integer.embedding(b.ids, table, one, name="words", shift=0))

    module = builder.module(body)
    with messages.raises(RangeError):
        evaluate(module, inputs(1, 2), builder.parameters)


def test_an_id_outside_the_table_is_refused(encoder, messages: Messages) -> None:
    module, parameters = encoder
    given = inputs(1, 4)
    given["input_ids"][0, 2] = 50
    with messages.raises(RangeError):
        evaluate(module, given, parameters)


def test_a_missing_parameter_is_named(encoder, messages) -> None:
    module, parameters = encoder
    without = {name: array for name, array in parameters.items() if name != "q.weight"}
    with messages.raises(LoweringError):
        evaluate(module, inputs(1, 4), without)


def test_an_array_of_another_shape_or_kind_is_refused(encoder, messages) -> None:
    module, parameters = encoder
    for wrong in (np.zeros((24, 23), np.int8), np.zeros((24, 24), np.float32)):
        with messages.raises(LoweringError):
            evaluate(module, inputs(1, 4), {**parameters, "q.weight": wrong})


def test_an_unknown_function_is_refused(encoder, messages) -> None:
    module, parameters = encoder
    with messages.raises(LoweringError):
        evaluate(module, {}, parameters, "serve")


def test_a_foreign_operator_is_refused(builder) -> None:
    module = builder.module(lambda b: b.builder.emit(relax.op.add(b.ids, b.ids), "odd"))
    with pytest.raises(LoweringError) as caught:
        evaluate(module, inputs(1, 2), {})
    text = str(caught.value)
    assert text.startswith(
        "Call is not a call of an integer operator\n  where: main, binding 'odd'"
    )
    assert text.endswith("what to do: lower this operator to the integer dialect")


def test_what_a_body_refuses_names_the_operator(messages) -> None:
    x = relax.Var("x", relax.TensorType([1, 2, 4], "int8"))
    given = {"softmax": "short", "exponential": ShortExponential.from_scale(1e-3)}
    given |= {"name": "self", "num_heads": 2, "shift": 1, "low": -9, "high": 9}
    arrays = {"multiplier": np.ones(1, np.int16), "bias": np.full((1, 3), 2**30, np.int32)}
    module = module_of(
        [x], lambda x, m, bias: integer.attention(x, x, x, None, m, bias=bias, **given), **arrays
    )
    with messages.raises(RangeError):
        evaluate(module, {"x": np.zeros((1, 2, 4), np.int8)}, arrays)
