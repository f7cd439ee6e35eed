"""The lowered integer program computes what the float module does, up to quantisation."""

from __future__ import annotations

import numpy as np
import pytest
import tvm

from ibert_tvm.relay_passes.integer.evaluate import evaluate, evaluate_all
from ibert_tvm.relay_passes.integer.ranges import analyse_ranges
from ibert_tvm.relay_passes.lower import lower_to_integer
from tests.canonical.reference import Tiny, run
from tests.lower.modules import SUM_HIGH, table_for

# Norm of the error over the norm of the value; ranges clip nothing. One int8 step is 1/254
# of the range and errors add up over the layers; the published forms floor.
TOLERANCE = {"accurate": 0.04, "paper": 0.06}


@pytest.fixture(
    scope="module",
    params=[("accurate", SUM_HIGH), ("accurate", 2**14 - 1), ("paper", SUM_HIGH)],
    ids=["accurate", "accurate, sums of 15 bits", "paper"],
)
def lowered(request):
    preset, sum_high = request.param
    tiny = Tiny(width=16, heads=3, feed=64)
    table = table_for(tiny.module, tiny.parameters, tiny.inputs(6, 23), preset, sum_high)
    model = lower_to_integer(tiny.module, tiny.parameters, table)
    short = '"integer.add_short"' in tvm.ir.save_json(model.module)
    assert short == (sum_high < SUM_HIGH)
    return tiny, preset, model


def relative_error(actual, expected, mask) -> float:
    """Over real tokens, or over rows that have any."""
    real = mask != 0 if expected.ndim == 3 else (mask != 0).any(axis=1)
    return np.linalg.norm(actual[real] - expected[real]) / np.linalg.norm(expected[real])


def test_every_value_is_close_to_its_float_original(lowered):
    tiny, preset, model = lowered
    inputs = tiny.inputs(6, 23)
    expected = run(tiny.module, {**inputs, **tiny.parameters})
    _, captured = evaluate_all(model.module, inputs, model.parameters)
    seen = set()
    for name, forms in model.scales["values"].items():
        for form in forms:
            integers = captured[form["value"]].astype(np.float64) - form["zero_point"]
            actual = integers * np.array(form["scale"])
            error = relative_error(actual, expected[name], inputs["attention_mask"])
            assert error < TOLERANCE[preset], (name, form["form"])
            seen.add(form["value"])
    assert set(captured) - seen == {"places.ids", "shifts.ids", "down.add.masked"}


def test_outputs_carry_their_scale(lowered):
    tiny, preset, model = lowered
    inputs = tiny.inputs(6, 23)
    expected = run(tiny.module, {**inputs, **tiny.parameters})
    outputs = evaluate(model.module, inputs, model.parameters)
    assert [o["name"] for o in model.scales["outputs"]] == list(tiny.outputs)
    for info, integers in zip(model.scales["outputs"], outputs, strict=True):
        assert str(integers.dtype) == info["dtype"]
        actual = integers * info["scale"]
        error = relative_error(actual, expected[info["name"]], inputs["attention_mask"])
        assert error < TOLERANCE[preset], info["name"]


def test_an_output_per_token_is_zero_where_there_is_padding(lowered):
    tiny, _, model = lowered
    inputs = tiny.inputs(6, 23)
    padding = inputs["attention_mask"] == 0
    last, *_ = evaluate(model.module, inputs, model.parameters)
    assert padding.any() and last.ndim == 3
    assert not last[padding].any()
    assert last[~padding].any()


def test_no_float_is_left(lowered):
    _, _, model = lowered
    text = model.module.script(show_meta=True)
    assert "float" not in text
    for name, array in model.parameters.items():
        assert array.dtype.kind == "i", name
    for binding in model.module["main"].body.blocks[0].bindings:
        for key, value in (dict(getattr(binding.value, "attrs", None) or {})).items():
            assert isinstance(value, (int, str)), key


def test_every_width_is_proven(lowered):
    _, _, model = lowered
    report = analyse_ranges(model.module, model.parameters, max_seq_len=64)
    assert max(value.width for value in report.details.values()) <= 64


def test_padding_does_not_change_real_tokens(lowered):
    tiny, _, model = lowered
    inputs = tiny.inputs(1, 9, seed=3)
    padded = {
        name: np.pad(array, ((0, 0), (0, 5)), constant_values=1 if name == "input_ids" else 0)
        for name, array in inputs.items()
    }
    short = evaluate(model.module, inputs, model.parameters)
    long = evaluate(model.module, padded, model.parameters)
    np.testing.assert_array_equal(long[0][:, :9], short[0])
    for a, b in zip(short[1:], long[1:], strict=True):
        np.testing.assert_array_equal(a, b)
