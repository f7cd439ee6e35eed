"""What cannot be lowered says which layer, why, and what to do."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from tvm import relax

from ibert_tvm.relay_passes.canonical import CanonicalError
from ibert_tvm.relay_passes.errors import CompilerError, LoweringError, PresetError, RangeError
from ibert_tvm.relay_passes.lower import lower_to_integer, requirements
from ibert_tvm.relay_passes.lower.rule import rules_of
from ibert_tvm.relay_passes.quantization_table import (
    ActivationQuant,
    QuantizationTable,
    WeightQuant,
)
from tests.canonical.reference import Tiny
from tests.lower.modules import function, rows, table_for, tensor, token_inputs


@pytest.fixture(scope="module")
def tiny() -> Tiny:
    return Tiny()


@pytest.fixture(scope="module")
def table(tiny) -> QuantizationTable:
    return table_for(tiny.module, tiny.parameters, tiny.inputs(3, 17))


def changed(table: QuantizationTable, section: str, name: str, entry) -> QuantizationTable:
    entries = dict(getattr(table, section))
    if entry is None:
        del entries[name]
    else:
        entries[name] = entry
    return replace(table, **{section: entries})


def refused(tiny, table, kind=LoweringError, parameters=None) -> str:
    with pytest.raises(kind) as caught:
        lower_to_integer(tiny.module, parameters or tiny.parameters, table)
    assert type(caught.value) is kind
    return str(caught.value)


def test_every_canonical_operator_has_a_rule():
    from ibert_tvm.relay_passes.canonical import OPERATORS

    assert sorted(rules_of("accurate")) == sorted(OPERATORS)


def test_missing_entries_are_named_together(tiny, table, messages):
    less = changed(changed(table, "matmul", "norm", None), "weights", "up", None)
    messages.check(refused(tiny, less))


def test_many_missing_entries_are_abbreviated(tiny, messages):
    messages.check(refused(tiny, QuantizationTable("accurate")))


def test_a_weight_of_another_model_is_refused(tiny, table, messages):
    other = changed(table, "weights", "up", rows(np.ones((20, 17))))
    messages.check(refused(tiny, other))


def test_queries_with_a_scale_per_channel_are_refused(tiny, table, messages):
    quant = replace(table.matmul["q"], channel_divisor=np.linspace(1, 2, 18))
    messages.check(refused(tiny, changed(table, "matmul", "q", quant)))


def test_values_with_a_zero_point_are_refused(tiny, table, messages):
    messages.check(refused(tiny, changed(table, "matmul", "v", ActivationQuant(0.1, 0, 255, 9))))


def test_a_second_form_of_a_value_with_a_zero_point_is_refused(tiny, table, messages):
    # The context leaves attention in its 8-bit form; layer normalisation wants another.
    entry = ActivationQuant(0.1, 0, 255, 9)
    messages.check(refused(tiny, changed(table, "matmul", "attention", entry)))


def test_a_bias_beyond_int32_names_layer_and_channel(tiny, table, messages):
    matrix = table.weights["up"]
    scale = matrix.scale.copy()
    scale[7] = 1e-13
    fine = changed(table, "weights", "up", WeightQuant(matrix.values, scale))
    messages.check(
        refused(tiny, fine, RangeError), reach=re.compile(r"(?<=  why: ).*(?= and int32)")
    )


def test_constants_that_do_not_fit_name_the_layer(tiny, table, messages):
    coarse = changed(table, "stream", "up", ActivationQuant(3.0, -32767, 32767))
    messages.check(refused(tiny, coarse, RangeError))


def test_a_bias_that_is_not_finite_names_the_layer(tiny, table, messages):
    bias = tiny.parameters["down.bias"].copy()
    bias[4] = np.nan
    messages.check(refused(tiny, table, RangeError, {**tiny.parameters, "down.bias": bias}))


def test_a_missing_weight_names_layer_and_operand(tiny, table, messages):
    less = {name: a for name, a in tiny.parameters.items() if name != "norm.bias"}
    messages.check(refused(tiny, table, LoweringError, less))


def test_a_float_operator_is_refused_by_name(table):
    ids, mask = token_inputs()
    x = tensor("x.weight", [3, 4])
    module = function([ids, mask], [x], lambda emit: emit(relax.op.nn.softmax(x)))
    with pytest.raises(CanonicalError) as caught:
        lower_to_integer(module, {"x.weight": np.ones((3, 4), np.float32)}, table)
    assert caught.value.what == "relax.nn.softmax is not a canonical operator"


def test_unknown_presets_are_refused(tiny):
    with pytest.raises(PresetError) as caught:
        requirements(tiny.module, "best")
    assert isinstance(caught.value, CompilerError)


BY_ROW = ActivationQuant(0.01, -16383, 16383, by_row=True)


@pytest.mark.parametrize("name", ["q", "attention"])
def test_a_scale_per_row_of_what_attention_reads_or_makes_is_refused(tiny, table, name, messages):
    messages.check(refused(tiny, changed(table, "matmul", name, BY_ROW)))


def test_a_bias_far_beyond_rows_names_layer_and_unit(tiny, table, messages):
    parameters = {**tiny.parameters, "up.bias": tiny.parameters["up.bias"] + np.float32(1e9)}
    text = refused(tiny, changed(table, "matmul", "norm", BY_ROW), RangeError, parameters)
    messages.check(text, units=re.compile(r"(?<=a bias is )[-+.e\d]+"))
