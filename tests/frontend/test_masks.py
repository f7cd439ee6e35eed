"""Attention is recognised under every spelling of its mask, window and bias, and under no other."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax
from tvm.relax import op

from ibert_tvm.frontend.errors import UnsupportedModelError
from ibert_tvm.relay_passes.dialect.heads import UNBOUNDED
from tests.frontend.imports import calls_of, ops, run
from tests.frontend.relax_models import (
    BATCH,
    HEADS,
    LENGTH,
    Source,
    canonical_of,
    module_of,
    padded_batch,
    run_source,
)


def number(value: float) -> relax.Expr:
    return relax.const(value, "float32")


def by_key(s: Source, x: relax.Expr) -> relax.Var:
    return s.emit(op.reshape(x, [BATCH, 1, 1, LENGTH]))


def additive(s: Source, x: relax.Expr) -> relax.Expr:
    """(1 - mask) * -10000, the old BERT."""
    mask = s.emit(op.astype(by_key(s, s.mask), "float32"))
    inverted = s.emit(op.subtract(number(1.0), mask))
    return s.emit(op.add(s.scores(x), s.emit(op.multiply(inverted, number(-10000.0)))))


def subtracted(s: Source, x: relax.Expr) -> relax.Expr:
    """scores - (1 - mask) * 1e9."""
    mask = s.emit(op.astype(by_key(s, s.mask), "float32"))
    inverted = s.emit(op.subtract(number(1.0), mask))
    return s.emit(op.subtract(s.scores(x), s.emit(op.multiply(inverted, number(1e9)))))


def indexed(s: Source, x: relax.Expr) -> relax.Expr:
    """The chain of arange, index_tensor and bitwise_and that transformers makes today."""
    mask = s.emit(op.astype(s.mask, "bool"))
    batch = s.emit(op.reshape(s.emit(op.arange(0, BATCH, 1, "int64")), [BATCH, 1, 1, 1]))
    key = s.emit(op.reshape(s.emit(op.arange(0, LENGTH, 1, "int64")), [1, 1, 1, LENGTH]))
    query = s.emit(op.reshape(s.emit(op.arange(0, LENGTH, 1, "int64")), [1, 1, LENGTH, 1]))
    taken = s.emit(op.index_tensor(mask, [batch, key]))
    always = s.emit(op.greater_equal(query, relax.const(0, "int64")))
    both = s.emit(op.bitwise_and(always, taken))
    term = s.emit(op.where(both, number(0.0), number(-3.4028234663852886e38)))
    return s.emit(op.add(s.scores(x), term))


def merged(s: Source, x: relax.Expr) -> relax.Expr:
    """Batch and heads in one axis, the mask repeated to match."""
    mask = s.emit(op.astype(by_key(s, s.mask), "float32"))
    term = s.emit(op.multiply(s.emit(op.subtract(mask, number(1.0))), number(1e4)))
    term = s.emit(op.broadcast_to(term, [BATCH, HEADS, LENGTH, LENGTH]))
    term = s.emit(op.reshape(term, [BATCH * HEADS, LENGTH, LENGTH]))
    flat = s.emit(op.reshape(s.scores(x), [BATCH * HEADS, LENGTH, LENGTH]))
    added = s.emit(op.add(flat, term))
    return s.emit(op.reshape(added, [BATCH, HEADS, LENGTH, LENGTH]))


def attention(mask):
    def body(s: Source) -> relax.Expr:
        x = s.words()
        return s.context(s.emit(op.nn.softmax(mask(s, x), axis=-1)), x)

    return body


@pytest.mark.representatives(1)
@pytest.mark.parametrize("spelling", [additive, subtracted, indexed, merged])
def test_every_spelling_is_the_plain_mask(spelling):
    body, batch = attention(spelling), padded_batch()
    result = canonical_of(body)
    np.testing.assert_allclose(run(result, batch), run_source(body, batch)[0], atol=2e-6)
    assert ops(result) == ["embedding", *["linear"] * 3, "attention"]
    last = calls_of(result)[-1]
    assert last.args[3].name == "attention_mask"
    assert (int(last.attrs["num_heads"]), float(last.attrs["scale"])) == (HEADS, 0.25)
    assert str(last.attrs["name"]) == "self"
    assert result.inputs == ("input_ids", "attention_mask")
    assert result.mask == "attention_mask"
    assert [str(d) for d in result.module["main"].params[1].ty.shape.values] == ["batch", "seq_len"]


def causal(s: Source, x: relax.Expr) -> relax.Expr:
    ones = s.emit(op.ones([LENGTH, LENGTH], "int64"))
    lower = s.emit(op.reshape(s.emit(op.tril(ones)), [1, 1, LENGTH, LENGTH]))
    both = s.emit(op.astype(s.emit(op.multiply(lower, by_key(s, s.mask))), "bool"))
    return s.emit(op.where(both, s.scores(x), number(-1e9)))


def sliding(s: Source, x: relax.Expr) -> relax.Expr:
    """Two keys before and one behind, by comparisons; padding is a term of its own."""
    key = s.emit(op.arange(0, LENGTH, 1, "int64"))
    distance = s.emit(op.subtract(key, s.emit(op.reshape(key, [LENGTH, 1]))))
    near = s.emit(op.greater(distance, relax.const(-3, "int64")))
    near = s.emit(op.logical_and(near, s.emit(op.less(distance, relax.const(2, "int64")))))
    term = s.emit(op.where(near, number(0.0), number(-np.inf)))
    padding = s.emit(op.astype(by_key(s, s.mask), "bool"))
    scores = s.emit(op.add(s.scores(x), term))
    return s.emit(op.where(padding, scores, number(-np.inf)))


def unmasked_where_empty(s: Source, x: relax.Expr) -> relax.Expr:
    """Causal; rows without keys see all of them, so that no library divides by 0."""
    ones = s.emit(op.ones([LENGTH, LENGTH], "int64"))
    lower = s.emit(op.reshape(s.emit(op.tril(ones)), [1, 1, LENGTH, LENGTH]))
    both = s.emit(op.multiply(lower, by_key(s, s.mask)))
    empty = s.emit(op.equal(s.emit(op.max(both, axis=-1, keepdims=True)), relax.const(0, "int64")))
    both = s.emit(op.logical_or(s.emit(op.astype(both, "bool")), empty))
    return s.emit(op.add(s.scores(x), s.emit(op.where(both, number(0.0), number(-1e9)))))


def by_bucket(s: Source, x: relax.Expr) -> relax.Expr:
    """A learned table looked up by buckets of distances, added to the mask first."""
    ids = relax.const(np.abs(DISTANCE) // 2 + 8 * (DISTANCE > 0), "int64")
    rows = s.emit(op.take(s.weight("buckets.weight", 16, HEADS), ids, axis=0))
    bias = s.emit(op.expand_dims(s.emit(op.permute_dims(rows, [2, 0, 1])), [0]))
    mask = s.emit(op.astype(by_key(s, s.mask), "float32"))
    low = s.emit(op.multiply(s.emit(op.subtract(mask, number(1.0))), number(1e9)))
    return s.emit(op.add(s.scores(x), s.emit(op.add(bias, low))))


def slopes(s: Source, x: relax.Expr) -> relax.Expr:
    """A number per head times the place of the key, which a softmax takes for the distance."""
    table = SLOPES[:, None, None] * np.arange(LENGTH, dtype=np.float32)
    term = s.emit(op.subtract(additive(s, x), relax.const(table, "float32")))
    lower = relax.const(DISTANCE <= 0, "bool")
    return s.emit(op.where(lower, term, number(-np.inf)))


DISTANCE = np.arange(LENGTH)[None, :] - np.arange(LENGTH)[:, None]
SLOPES = np.float32(0.5) ** np.arange(1, HEADS + 1, dtype=np.float32)
DISTANCES = np.arange(1 - LENGTH, LENGTH)


@pytest.mark.representatives(1)
@pytest.mark.parametrize(
    ("spelling", "window"),
    [
        (causal, (UNBOUNDED, 0)),
        (unmasked_where_empty, (UNBOUNDED, 0)),
        (sliding, (2, 1)),
        (by_bucket, (UNBOUNDED, UNBOUNDED)),
        (slopes, (UNBOUNDED, 0)),
    ],
    ids=lambda item: getattr(item, "__name__", None),
)
def test_windows_and_biases_by_distance(spelling, window):
    body = attention(spelling)
    result = canonical_of(body)
    call = calls_of(result)[-1]
    assert (int(call.attrs["before"]), int(call.attrs["after"])) == window
    assert result.mask == call.args[3].name == "attention_mask"
    biases = {"by_bucket": "buckets.weight", "slopes": "bias_by_distance"}
    assert [argument.name for argument in call.args[4:]] == [
        name for key, name in biases.items() if key == spelling.__name__
    ]
    batch = padded_batch()
    output = run(result, batch)
    tokens = batch["attention_mask"] != 0
    expected = run_source(body, batch)[0]
    np.testing.assert_allclose(output[tokens], expected[tokens], atol=2e-6)


def test_a_table_of_buckets_becomes_one_of_distances():
    result = canonical_of(attention(by_bucket))
    table = module_of(attention(by_bucket))[1].arrays["buckets_weight"]
    rows = np.abs(DISTANCES) // 2 + 8 * (DISTANCES > 0)
    np.testing.assert_array_equal(result.parameters["buckets.weight"], table[rows].T)
    slope = canonical_of(attention(slopes)).parameters["bias_by_distance"]
    seen = np.where(DISTANCES <= 0, -SLOPES[:, None] * DISTANCES, 0)  # causal
    np.testing.assert_allclose(slope, seen, atol=1e-5)


def dilated(s: Source, x: relax.Expr) -> relax.Expr:
    return s.emit(op.where(relax.const(DISTANCE % 2 == 0, "bool"), s.scores(x), number(-1e9)))


def ahead(s: Source, x: relax.Expr) -> relax.Expr:
    return s.emit(op.where(relax.const(DISTANCE > 0, "bool"), s.scores(x), number(-1e9)))


def inverted(s: Source, x: relax.Expr) -> relax.Expr:
    mask = by_key(s, s.emit(op.astype(s.mask, "bool")))
    return s.emit(op.where(mask, number(-1e9), s.scores(x)))


def gentle(s: Source, x: relax.Expr) -> relax.Expr:
    mask = s.emit(op.astype(by_key(s, s.mask), "float32"))
    return s.emit(op.add(s.scores(x), s.emit(op.multiply(mask, number(2.0)))))


def queries(s: Source, x: relax.Expr) -> relax.Expr:
    mask = s.emit(op.reshape(s.emit(op.astype(s.mask, "bool")), [BATCH, 1, LENGTH, 1]))
    return s.emit(op.where(mask, s.scores(x), number(-1e9)))


def shifted(s: Source, x: relax.Expr) -> relax.Expr:
    table = relax.const(np.linspace(0, 1, LENGTH, dtype=np.float32) ** 2, "float32")
    return s.emit(op.add(s.scores(x), table))


def low(s: Source, x: relax.Expr) -> relax.Expr:
    mask = by_key(s, s.emit(op.astype(s.mask, "bool")))
    return s.emit(op.where(mask, s.scores(x), number(-5.0)))


@pytest.mark.parametrize(
    ("mask", "op_name"),
    [
        (dilated, "relax.where"),
        (ahead, "relax.where"),
        (inverted, "relax.where"),
        (gentle, "relax.add"),
        (shifted, "relax.add"),
        (queries, "relax.where"),
        (low, "relax.where"),
        (lambda s, x: s.scores(x), "relax.matmul"),
    ],
    ids=["dilated", "ahead", "inverted", "bias by mask", "bias", "masked queries", "-5", "no mask"],
)
def test_other_masks_are_refused(mask, op_name, messages):
    with messages.raises(UnsupportedModelError) as error:
        canonical_of(attention(mask))
    assert error.value.report is not None
    assert [item.op for item in error.value.report.refusals][-1] == op_name


def test_a_source_without_any_mask_gets_one():
    result = canonical_of(attention(lambda s, x: s.scores(x)), inputs=("input_ids",))
    assert result.inputs == ("input_ids", "attention_mask")
    assert result.added_inputs == ("attention_mask",)
    assert [f.what for f in result.report.foldings] == [
        "the source masks no padding: an input was added for it"
    ]
