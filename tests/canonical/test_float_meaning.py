"""The float meaning of canonical modules: evaluation against NumPy in float64."""

from __future__ import annotations

from math import erfc

import numpy as np
import pytest

from ibert_tvm.relay_passes.canonical import OPERATORS, CanonicalError, FloatModel, check_canonical
from ibert_tvm.relay_passes.canonical.operators.functions import Gelu
from tests.canonical.reference import Tiny, run

# Float32 against float64, sums over at most 64 terms of size 10.
TOLERANCE = 2e-5


@pytest.fixture(scope="module")
def tiny() -> Tiny:
    return Tiny()


@pytest.mark.parametrize(("batch", "length"), [(1, 1), (1, 7), (3, 17), (2, 64)])
def test_evaluation_computes_every_value(tiny, batch, length):
    inputs = tiny.inputs(batch, length)
    result = FloatModel(tiny.module, tiny.parameters, "all").run(inputs)
    expected = run(tiny.module, {**inputs, **tiny.parameters})
    assert list(result.values) == [name for name in expected if not name.endswith(".ids")]
    for name, value in result.values.items():
        np.testing.assert_allclose(value, expected[name], atol=TOLERANCE, err_msg=name)
    for name, output in zip(tiny.outputs, result.outputs, strict=True):
        np.testing.assert_array_equal(output, result.values[name])
    one_by_one = FloatModel(tiny.module, tiny.parameters, "all").captured(inputs)
    for (name, value), known in zip(one_by_one, result.values, strict=True):
        assert name == known
        np.testing.assert_array_equal(value, result.values[name], err_msg=name)


@pytest.mark.parametrize(
    ("width", "heads", "feed"), [(32, 2, 64), (8, 1, 33), (5, 3, 7), (64, 1, 16)]
)
def test_evaluation_takes_any_width(width, heads, feed):
    tiny = Tiny(width, heads, feed)
    inputs = tiny.inputs(2, 9)
    result = FloatModel(tiny.module, tiny.parameters, tiny.outputs).run(inputs)
    expected = run(tiny.module, {**inputs, **tiny.parameters})
    for name, value in result.values.items():
        np.testing.assert_allclose(value, expected[name], atol=TOLERANCE, err_msg=name)


def test_exact_gelu_keeps_its_digits_in_both_tails():
    x = np.linspace(-12, 12, 40_001, dtype=np.float32).reshape(1, -1, 1)
    expected = [0.5 * v * erfc(-v / 2**0.5) for v in x.ravel().tolist()]
    found = Gelu(name="act").evaluate(x=x[:, ::-1])[:, ::-1]
    np.testing.assert_allclose(found.ravel(), expected, atol=5e-7, rtol=0)
    far = np.array([[[-1e18, -1e3, 0, 1e3, 1e18, np.nan]]], np.float32)
    np.testing.assert_array_equal(Gelu(name="act").evaluate(x=far), np.where(far < 0, 0, far))


def test_a_row_without_tokens_attends_to_nothing(tiny):
    inputs = tiny.inputs(2, 9)
    assert not inputs["attention_mask"][1].any()
    values = FloatModel(tiny.module, tiny.parameters, ["attention", "mean"]).run(inputs).values
    np.testing.assert_array_equal(values["attention"][1], 0)
    np.testing.assert_array_equal(values["mean"][1], 0)


def test_padding_weighs_exactly_nothing(tiny):
    """Ids under the mask may be anything: the tokens' results keep every bit."""
    inputs = tiny.inputs(1, 12)
    inputs["attention_mask"][0, 8:] = 0
    executable = FloatModel(tiny.module, tiny.parameters, ["attention", "mean"])
    before = executable.run(inputs)
    changed = {**inputs, "input_ids": inputs["input_ids"].copy()}
    changed["input_ids"][0, 8:] = 5
    after = executable.run(changed)
    for name in ("attention", "mean"):
        a, b = before.values[name], after.values[name]
        tokens = (slice(0, 1), slice(0, 8)) if a.ndim == 3 else ...
        np.testing.assert_array_equal(a[tokens], b[tokens])


@pytest.mark.parametrize(("before", "after"), [(None, 0), (2, 1), (0, None), (None, None)])
@pytest.mark.parametrize("rows", [0, 1, 3])
@pytest.mark.parametrize("masked", [True, False])
def test_attention_with_a_window_and_a_bias_by_distance(before, after, rows, masked):
    random = np.random.default_rng(6)
    q, k, v = (random.normal(size=(2, 7, 12)).astype(np.float32) for _ in "qkv")
    mask = np.array([[1] * 7, [1, 1, 1, 1, 0, 0, 0]]) if masked else np.ones((2, 7), np.int64)
    table = random.normal(size=(rows or 1, 2 * 9 - 1)).astype(np.float32) * bool(rows)
    window = {n: d for n, d in (("before", before), ("after", after)) if d is not None}
    operator = OPERATORS["canonical.attention"](name="a", num_heads=3, scale=0.7, **window)
    given = {"attention_mask": mask} if masked else {}
    if rows:
        given["bias"] = table
    result = operator.evaluate(q, k, v, **given)
    for b, h, i in np.ndindex(2, 3, 7):
        channels = slice(4 * h, 4 * h + 4)
        low, high = (0 if before is None else i - before), (6 if after is None else i + after)
        keys = [j for j in range(max(low, 0), min(high, 6) + 1) if mask[b, j]]
        scores = [
            0.7 * float(q[b, i, channels] @ k[b, j, channels])
            + float(table[h if rows == 3 else 0, j - i + 8])
            for j in keys
        ]
        power = np.exp(scores)
        expected = power @ v[b, keys, channels] / max(power.sum(), 1e-30)
        np.testing.assert_allclose(result[b, i, channels], expected, atol=TOLERANCE)


def test_a_sequence_beyond_the_bias_is_refused(messages):
    operator = OPERATORS["canonical.attention"](name="a", num_heads=1, scale=1.0)
    x = np.zeros((1, 5, 4), np.float32)
    with messages.raises(CanonicalError):
        operator.evaluate(x, x, x, bias=np.zeros((1, 7), np.float32))


def test_the_tiny_module_is_canonical(tiny):
    check_canonical(tiny.module)


@pytest.mark.parametrize(
    "change",
    [
        lambda i: i.pop("attention_mask"),
        lambda i: i.update(attention_mask=np.ones((1, 3), np.int64)),
    ],
)
def test_wrong_inputs_are_refused(tiny, change, messages):
    inputs = tiny.inputs(1, 4)
    change(inputs)
    with messages.raises(CanonicalError):
        FloatModel(tiny.module, tiny.parameters).run(inputs)


def test_an_unknown_value_is_refused(tiny, messages):
    with messages.raises(CanonicalError):
        FloatModel(tiny.module, tiny.parameters, ["nothing"])


@pytest.mark.parametrize(
    "change", [lambda p: p.pop("q.bias"), lambda p: p.update({"q.bias": np.zeros(3, np.float32)})]
)
def test_wrong_weights_are_refused(tiny, change, messages):
    parameters = dict(tiny.parameters)
    change(parameters)
    with messages.raises(CanonicalError):
        FloatModel(tiny.module, parameters)
