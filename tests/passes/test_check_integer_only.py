"""CheckIntegerOnly: no float hides anywhere, and no integer program is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tvm
from tvm import relax, te, tirx

from ibert_tvm.relay_passes import integer
from ibert_tvm.relay_passes.emit import KernelLayout
from ibert_tvm.relay_passes.errors import IntegerOnlyError
from ibert_tvm.relay_passes.passes import IntegerProgram, lower_to_kernels
from ibert_tvm.relay_passes.passes.check_integer_only import (
    CheckIntegerOnly,
    float_nodes,
    is_integer_dtype,
)
from tests.passes.models import encoder_program
from tests.passes.small import small_program
from tests.snapshots import Messages

LAYOUT = KernelLayout("uint8", 16, 4, 8)
LAYER = "encoder.layer.3.intermediate"


def refusal(program: IntegerProgram) -> IntegerOnlyError:
    with pytest.raises(IntegerOnlyError) as caught:
        CheckIntegerOnly()(program)
    return caught.value


def detour(operation) -> IntegerProgram:
    """A linear layer whose accumulator goes through `operation` before it is requantised."""

    def body(p, inputs):
        wide = p.linear(LAYER, inputs["x"], 8)
        return [p.requantise(f"{LAYER}.narrow", operation(p, wide), 0.01)]

    return small_program(body, x="int8")


def float_addition(p, wide: relax.Var) -> relax.Var:
    real = p.emit(relax.op.astype(wide, "float32"))
    return p.emit(relax.op.astype(p.emit(relax.op.add(real, real)), "int32"))


def float_constant(p, wide: relax.Var) -> relax.Var:
    half = relax.const(np.full(8, 0.5, "float32"))
    return p.emit(relax.op.add(wide, p.emit(relax.op.astype(half, "int32"))))


def with_attrs(call: relax.Call, **attrs: object) -> relax.Call:
    kept = {**dict(call.attrs.items()), **attrs}
    return relax.Call(call.op, list(call.args), tvm.ir.make_node("ir.DictAttrs", **kept))


def relu_with(**attrs: object):
    return lambda p, wide: p.emit(
        with_attrs(integer.relu(wide, name="encoder.layer.7.relu"), **attrs)
    )


# -- planted in the Relax function ---------------------------------------------------------------


def test_an_integer_detour_is_no_false_alarm() -> None:
    CheckIntegerOnly()(detour(lambda p, wide: p.emit(integer.relu(wide, name="relu"))))


def test_a_conversion_to_float_is_refused_with_the_layer_before_it(messages: Messages) -> None:
    messages.check(str(refusal(detour(float_addition))))


def test_a_float_addition_is_refused(messages: Messages) -> None:
    def body(p, inputs):
        half = relax.const(np.full(8, 0.5, "float32"))
        return [inputs["x"], p.emit(relax.op.add(half, half))]

    error = refusal(small_program(body, x="int8"))
    messages.check(str(error))


def test_compilation_fails_with_the_layers_name() -> None:
    with pytest.raises(IntegerOnlyError) as caught:
        lower_to_kernels(detour(float_addition), LAYOUT, [(1, 4)])
    assert LAYER in caught.value.where


def test_a_float_constant_is_refused(messages: Messages) -> None:
    messages.check(str(refusal(detour(float_constant))))


def test_a_float_returned_as_it_is_is_refused(messages: Messages) -> None:
    x = relax.Var("x", relax.TensorType([2], "int32"))
    constant = relax.const(np.ones(2, "float32"))
    function = relax.Function([x], constant, relax.TensorType([2], "float32"))
    module = tvm.IRModule({"main": function.with_attr("num_input", 1)})
    program = IntegerProgram(relax.transform.Normalize()(module), {})
    messages.check(str(refusal(program)))


@pytest.mark.parametrize(
    "attrs",
    [
        {"slope": 0.01},
        {"table": {"inner": [1, 2, {"deep": 0.5}]}},
        {"whole": 2.0},
        {"compute_dtype": "float16"},
        {"kinds": ["int8", "bfloat16"]},
        {"kind": tvm.DataType("float64")},
        {"lanes": tvm.DataType("float32x4")},
        {"value": tirx.FloatImm("float32", 1.0)},
        {"data": tvm.runtime.tensor(np.ones(3, "float32"))},
    ],
    ids=lambda attrs: next(iter(attrs)),
)
def test_a_float_in_attributes_is_refused_however_deep(attrs: dict, messages: Messages) -> None:
    messages.check(str(refusal(detour(relu_with(**attrs)))))


@pytest.mark.parametrize(
    "attrs",
    [
        {"note": "half_bits"},
        {"note": "float_layer"},
        {"note": "floating32bits"},
        {"note": "double"},
        {"shift": 31, "wide": 2**40, "flag": True},
        {"kind": tvm.DataType("int8x16")},
        {"data": tvm.runtime.tensor(np.ones(3, "int64"))},
        {"data": tvm.runtime.tensor(np.ones(3, "uint8"))},
        {"data": tvm.runtime.tensor(np.ones(3, "bool"))},
    ],
    ids=str,
)
def test_integers_and_names_in_attributes_are_no_false_alarm(attrs: dict) -> None:
    CheckIntegerOnly()(detour(relu_with(**attrs)))


def test_names_of_layers_and_parameters_may_speak_of_floats() -> None:
    def body(p, inputs):
        return [p.requantise("half", p.linear("float_layer.float32_proj", inputs["x"], 8), 0.1)]

    CheckIntegerOnly()(small_program(body, x="int8"))


# -- planted elsewhere ---------------------------------------------------------------------------


def test_a_float_parameter_is_refused(messages: Messages) -> None:
    program = encoder_program()
    parameters = {**program.parameters, "v.bias": program.parameters["v.bias"].astype("float32")}
    error = refusal(IntegerProgram(program.module, parameters))
    messages.check(str(error))


def test_a_float_type_of_a_parameter_is_refused(messages: Messages) -> None:
    program = small_program(lambda p, inputs: [inputs["attention_mask"]], scale="float32")
    messages.check(str(refusal(program)))


def test_a_float_in_the_attributes_of_a_function_or_module_is_refused(messages: Messages) -> None:
    program = encoder_program()
    function = program.module["main"].with_attr("scale", 0.25)
    error = refusal(program.with_module(tvm.IRModule({"main": function})))
    messages.check(str(error))
    module = tvm.IRModule(
        {"main": program.module["main"]}, attrs=tvm.ir.make_node("ir.DictAttrs", scale=0.25)
    )
    messages.check(str(refusal(program.with_module(module))))


def kernel(body, dtype: str = "int32") -> tirx.PrimFunc:
    """An elementwise kernel of the layer `LAYER`."""
    x = te.placeholder((4,), dtype, name="x")
    y = te.compute((4,), lambda i: body(x[i]), name="y")
    return te.create_prim_func([x, y]).with_attr("ibert.layer", LAYER)


@pytest.mark.parametrize(
    "body",
    [
        lambda x: (x.astype("float32") * 2.5).astype("int32"),
        lambda x: tirx.exp(x.astype("float16")).astype("int32"),
        lambda x: tirx.Select(x.astype("float64") > tirx.const(1.5, "float64"), x, x + 1),
        lambda x: tirx.call_pure_extern("int32", "lroundf", tirx.const(1.5, "float32")) + x,
    ],
    ids=["product", "exponential", "comparison", "library call"],
)
def test_a_float_in_the_body_of_a_kernel_is_refused(body, messages: Messages) -> None:
    program = IntegerProgram(tvm.IRModule({"k": kernel(body)}), {})
    messages.check(str(refusal(program)))


def test_a_float_buffer_of_a_kernel_is_refused() -> None:
    program = IntegerProgram(tvm.IRModule({"k": kernel(lambda x: x, "float32")}), {})
    assert refusal(program).where == LAYER


def test_an_integer_kernel_passes() -> None:
    program = IntegerProgram(tvm.IRModule({"k": kernel(lambda x: x * 2 + 1)}), {})
    CheckIntegerOnly()(program)


def test_a_float_that_appears_while_lowering_is_found_in_its_kernel() -> None:
    lowered = lower_to_kernels(encoder_program(), LAYOUT, [(1, 4)]).program
    functions = dict(lowered.module.functions_items())
    var = next(var for var in functions if var.name_hint.endswith("_inner"))
    functions[var] = kernel(lambda x: (x.astype("float32") * 2.5).astype("int32"))
    error = refusal(replace(lowered, module=tvm.IRModule(functions)))
    assert error.where == LAYER


# -- what passes, and what it reports ------------------------------------------------------------


@pytest.mark.parametrize("preset", ["accurate", "paper"])
def test_integer_programs_pass_unchanged_and_are_counted(preset: str) -> None:
    program = encoder_program(preset=preset)
    check = CheckIntegerOnly()
    assert check(program) is program
    operators = 34 if preset == "accurate" else 33
    assert check.summary["parameters"] == len(program.parameters)
    assert check.summary["kernels"] == 0
    assert operators <= check.summary["operations"] <= operators + 6  # names of outputs too
    assert check.summary["nodes"] > 2 * operators

    lowered = lower_to_kernels(program, LAYOUT, [(1, 4)])
    assert lowered.checked["kernels"] == 13
    assert lowered.checked["parameters"] == len(lowered.program.parameters)


def test_a_second_check_counts_afresh() -> None:
    check = CheckIntegerOnly()
    program = encoder_program()
    first = dict(check(program) and check.summary)
    assert dict(check(program) and check.summary) == first


FLOATS = """float16 float32 float64 bfloat16 float32x4 bfloat16x8 float32xvscalex4 float8_e4m3fn
    float8_e5m2 float8_e4m3b11fnuz float8_e8m0fnu float6_e2m3fn float4_e2m1fn fp16"""
INTEGERS = """int8 uint8 int16 int32 int64 bool int4 uint8x4 int32x16 int8xvscalex4 handle void
    half_bits float_layer float x.float32"""


@pytest.mark.parametrize("dtype", FLOATS.split())
def test_types_that_are_floats(dtype: str) -> None:
    assert not is_integer_dtype(dtype)


@pytest.mark.parametrize("dtype", ["", *INTEGERS.split()])
def test_types_and_names_that_are_not(dtype: str) -> None:
    assert is_integer_dtype(dtype)


def test_float_nodes_lists_everything() -> None:
    found = list(float_nodes(kernel(lambda x: (x.astype("float32") * 2.5).astype("int32"))))
    assert found == [
        "prim.Cast of type float32",
        "ir.FloatImm of type float32",
        "prim.Mul of type float32",
    ]
