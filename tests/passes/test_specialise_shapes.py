"""SpecialiseShapes: one static function per shape, all with the same parameters."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

from ibert_tvm.relay_passes import integer
from ibert_tvm.relay_passes.passes import IntegerProgram, function_name
from ibert_tvm.relay_passes.passes.program import bindings, num_inputs
from ibert_tvm.relay_passes.passes.specialise_shapes import SpecialiseShapes
from tests.passes.models import encoder_program
from tests.passes.small import calls, outputs_of, small_program


@pytest.fixture(scope="module")
def program() -> IntegerProgram:
    return encoder_program()


def names(program: IntegerProgram) -> list[str]:
    return sorted(var.name_hint for var in program.module.get_global_vars())


def test_there_is_one_function_per_shape(program: IntegerProgram) -> None:
    result = SpecialiseShapes([(1, 16), (8, 128)])(program)
    assert names(result) == ["main_b1_s16", "main_b8_s128"]
    assert names(result) == sorted([function_name(1, 16), function_name(8, 128)])
    for (batch, seq_len), name in (((1, 16), "main_b1_s16"), ((8, 128), "main_b8_s128")):
        function = result.module[name]
        assert function.attrs["global_symbol"] == name
        assert [int(size) for size in function.attrs["ibert.shape"]] == [batch, seq_len]
        assert num_inputs(function) == 2


def test_a_shape_given_twice_is_one_function(program: IntegerProgram) -> None:
    assert names(SpecialiseShapes([(2, 8), (1, 8), (2, 8)])(program)) == [
        "main_b1_s8",
        "main_b2_s8",
    ]


def test_every_shape_is_static_afterwards(program: IntegerProgram) -> None:
    function = SpecialiseShapes([(3, 5)])(program).module["main_b3_s5"]
    types = [var.ty for var in function.params] + [b.var.ty for b in bindings(function)]
    dimensions = [size for kind in types for size in kind.shape.values]
    assert all(hasattr(size, "value") for size in dimensions)
    assert {int(size) for size in function.params[0].ty.shape.values} == {3, 5}
    assert [tuple(map(int, kind.shape.values)) for kind in function.ret_ty.fields] == [
        (3, 5, 32),
        (3, 32),
        (3, 32),
    ]


def test_parameters_keep_their_names_order_and_values(program: IntegerProgram) -> None:
    result = SpecialiseShapes([(1, 4), (2, 4)])(program)
    assert result.parameters is program.parameters
    for name in names(result):
        params = [var.name for var in result.module[name].params]
        assert params == ["input_ids", "attention_mask", *program.parameters]


def test_operators_and_results_are_unchanged(program: IntegerProgram) -> None:
    result = SpecialiseShapes([(2, 3)])(program)
    assert calls(result.module["main_b2_s3"]) == calls(program.module["main"])
    for got, want in zip(
        outputs_of(result, "main_b2_s3", (2, 3)), outputs_of(program, "main", (2, 3)), strict=True
    ):
        np.testing.assert_array_equal(got, want)


def test_what_no_output_needs_is_dropped_but_its_parameters_stay() -> None:
    def body(p, inputs):
        p.requantise("dead", p.emit(integer.relu(inputs["x"], name="dead_relu")), 0.5)
        return [p.requantise("live", inputs["x"], 0.5)]

    program = small_program(body, x="int8")
    assert calls(program.module["main"]) == [
        ("relu", "dead_relu"),
        ("requantise", "dead"),
        ("requantise", "live"),
    ]
    function = SpecialiseShapes([(1, 2)])(program).module["main_b1_s2"]
    assert calls(function) == [("requantise", "live")]
    assert [var.name for var in function.params][3:] == ["dead.multiplier", "live.multiplier"]


def test_no_variable_is_another_name_of_a_value() -> None:
    def body(p, inputs):
        wide = p.linear("layer", inputs["x"], 8)
        alias = p.builder.emit(wide)
        return [p.requantise("narrow", alias, 0.01), alias]

    program = small_program(body, x="int8")
    assert any(isinstance(b.value, relax.Var) for b in bindings(program.module["main"]))
    result = SpecialiseShapes([(2, 3)])(program)
    function = result.module["main_b2_s3"]
    assert not any(isinstance(b.value, relax.Var) for b in bindings(function))
    for got, want in zip(outputs_of(result, "main_b2_s3"), outputs_of(program), strict=True):
        np.testing.assert_array_equal(got, want)


def test_the_program_given_is_not_changed(program: IntegerProgram) -> None:
    before = program.module.script(show_meta=True)
    SpecialiseShapes([(1, 4)])(program)
    assert program.module.script(show_meta=True) == before
    assert names(program) == ["main"]
