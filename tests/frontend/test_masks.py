"""Attention is recognised under every spelling of a padding mask, and under no other mask."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax
from tvm.relax import op

from ibert_tvm.frontend.errors import UnsupportedModelError
from ibert_tvm.relay_passes.canonical import FloatModel, canonical_calls
from tests.frontend.relax_models import (
    BATCH,
    CHANNELS,
    HEADS,
    LENGTH,
    Source,
    canonical_of,
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


def chosen(s: Source, x: relax.Expr) -> relax.Expr:
    """scores + where(mask, 0, -FLT_MAX), expanded to all queries first."""
    mask = by_key(s, s.emit(op.astype(s.mask, "bool")))
    mask = s.emit(op.broadcast_to(mask, [BATCH, 1, LENGTH, LENGTH]))
    low = number(float(np.finfo(np.float32).min))
    return s.emit(op.add(s.scores(x), s.emit(op.where(mask, number(0.0), low))))


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


def filled(s: Source, x: relax.Expr) -> relax.Expr:
    """masked_fill(mask == 0, -inf)."""
    empty = s.emit(op.equal(by_key(s, s.mask), relax.const(0, "int64")))
    empty = s.emit(op.broadcast_to(empty, [BATCH, HEADS, LENGTH, LENGTH]))
    return s.emit(op.where(empty, number(float("-inf")), s.scores(x)))


def kept(s: Source, x: relax.Expr) -> relax.Expr:
    """where(mask, scores, -1e4), the mask doubled by an outer product with itself."""
    mask = by_key(s, s.emit(op.astype(s.mask, "bool")))
    return s.emit(op.where(mask, s.scores(x), number(-1e4)))


def merged(s: Source, x: relax.Expr) -> relax.Expr:
    """Batch and heads in one axis, the mask repeated to match."""
    mask = s.emit(op.astype(by_key(s, s.mask), "float32"))
    term = s.emit(op.multiply(s.emit(op.subtract(mask, number(1.0))), number(1e4)))
    term = s.emit(op.broadcast_to(term, [BATCH, HEADS, LENGTH, LENGTH]))
    term = s.emit(op.reshape(term, [BATCH * HEADS, LENGTH, LENGTH]))
    flat = s.emit(op.reshape(s.scores(x), [BATCH * HEADS, LENGTH, LENGTH]))
    added = s.emit(op.add(flat, term))
    return s.emit(op.reshape(added, [BATCH, HEADS, LENGTH, LENGTH]))


SPELLINGS = [additive, subtracted, chosen, indexed, filled, kept, merged]


def attention(mask):
    def body(s: Source) -> relax.Expr:
        x = s.words()
        return s.context(s.emit(op.nn.softmax(mask(s, x), axis=-1)), x)

    return body


@pytest.mark.parametrize("spelling", SPELLINGS, ids=lambda f: f.__name__)
def test_every_spelling_is_the_plain_mask(spelling):
    result = canonical_of(attention(spelling))
    calls = [call for _, call in canonical_calls(result.module)]
    assert [call.op.name for call in calls] == [
        "canonical.embedding",
        "canonical.linear",
        "canonical.linear",
        "canonical.linear",
        "canonical.attention",
    ]
    last = calls[-1]
    assert last.args[3].name == "attention_mask"
    assert (int(last.attrs["num_heads"]), float(last.attrs["scale"])) == (HEADS, 0.25)
    assert str(last.attrs["name"]) == "self"
    assert result.inputs == ("input_ids", "attention_mask")
    assert result.mask == "attention_mask"
    assert [str(d) for d in result.module["main"].params[1].ty.shape.values] == ["batch", "seq_len"]


@pytest.mark.parametrize("spelling", [indexed, filled, merged], ids=lambda f: f.__name__)
def test_the_canonical_module_computes_the_same(spelling):
    body = attention(spelling)
    batch = padded_batch()
    result = canonical_of(body)
    output = FloatModel(result.module, result.parameters).run(batch).outputs[0]
    np.testing.assert_allclose(output, run_source(body, batch)[0], atol=2e-6)


def causal(s: Source, x: relax.Expr) -> relax.Expr:
    ones = s.emit(op.ones([LENGTH, LENGTH], "int64"))
    lower = s.emit(op.reshape(s.emit(op.tril(ones)), [1, 1, LENGTH, LENGTH]))
    both = s.emit(op.astype(s.emit(op.multiply(lower, by_key(s, s.mask))), "bool"))
    return s.emit(op.where(both, s.scores(x), number(-1e9)))


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
    table = relax.const(np.linspace(0, 1, LENGTH, dtype=np.float32), "float32")
    return s.emit(op.add(s.scores(x), table))


def low(s: Source, x: relax.Expr) -> relax.Expr:
    mask = by_key(s, s.emit(op.astype(s.mask, "bool")))
    return s.emit(op.where(mask, s.scores(x), number(-5.0)))


BIAS = (
    "the mask follows none of the inputs: what is added to the scores is neither 0 nor below "
    "-1000: it is a bias, not a mask"
)


@pytest.mark.parametrize(
    ("mask", "op_name", "why"),
    [
        (
            causal,
            "relax.where",
            "the mask follows none of the inputs: it is causal, a token sees only those before it, "
            "and every token of an encoder sees all",
        ),
        (
            inverted,
            "relax.where",
            "the mask follows none of the inputs (input_ids: the masked keys are not those with "
            "0; attention_mask: it masks keys with 1 and keeps those with 0, but 1 has to mark "
            "tokens)",
        ),
        (gentle, "relax.add", BIAS),
        (shifted, "relax.add", BIAS),
        (
            queries,
            "relax.where",
            "the mask follows none of the inputs: what is masked differs between queries or heads",
        ),
        (
            low,
            "relax.where",
            "masked scores become -5.0, which is not low enough to weigh nothing",
        ),
        (
            lambda s, x: s.scores(x),
            "relax.matmul",
            "this attention ignores the padding mask that the model takes",
        ),
    ],
    ids=["causal", "inverted", "bias by mask", "bias", "masked queries", "-5", "no mask"],
)
def test_other_masks_are_refused(mask, op_name, why):
    with pytest.raises(UnsupportedModelError) as error:
        canonical_of(attention(mask))
    assert str(error.value) == (
        f"{op_name} has no integer form here\n"
        f"  where: operator {op_name}, layer self.query (needed by output0)\n"
        f"  why: {why}\n"
        "  what to do: use a model built from linear, attention, layer_norm, gelu, relu, tanh, "
        "embedding and add, or change this part of it; `ibert inspect` shows what was matched"
    )
    assert error.value.report is not None
    assert [item.op for item in error.value.report.refusals][-1] == op_name


def test_a_source_without_any_mask_gets_one():
    result = canonical_of(attention(lambda s, x: s.scores(x)), inputs=("input_ids",))
    assert result.inputs == ("input_ids", "attention_mask")
    assert result.added_inputs == ("attention_mask",)
    assert [f.what for f in result.report.foldings] == [
        "the source masks no padding: an input was added for it"
    ]


def test_no_constant_depends_on_the_probe_shape():
    """Compiled at another shape, the module still masks what it should."""
    result = canonical_of(attention(indexed))
    random = np.random.default_rng(0)
    ids = random.integers(0, 17, (3, 31))
    mask = np.ones_like(ids)
    mask[2, 9:] = 0
    executable = FloatModel(result.module, result.parameters)
    padded = executable.run({"input_ids": ids, "attention_mask": mask}).outputs[0][2:, :9]
    short = executable.run({"input_ids": ids[2:, :9], "attention_mask": mask[2:, :9]}).outputs[0]
    np.testing.assert_allclose(padded, short, atol=2e-6)
    assert all(13 not in array.shape for array in result.parameters.values())
    assert result.parameters["words.weight"].shape == (17, CHANNELS)
