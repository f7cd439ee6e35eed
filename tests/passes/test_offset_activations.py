"""OffsetActivations: signedness of matrix operands, compensated exactly in the biases."""

from __future__ import annotations

import numpy as np
import pytest
import tvm

from ibert_tvm.relay_passes import integer
from ibert_tvm.relay_passes.emit import KernelLayout
from ibert_tvm.relay_passes.errors import RangeError
from ibert_tvm.relay_passes.integer.relax_ops import operator_name
from ibert_tvm.relay_passes.passes import IntegerProgram
from ibert_tvm.relay_passes.passes.offset_activations import OffsetActivations
from ibert_tvm.relay_passes.passes.program import bindings
from tests.passes.models import encoder_program
from tests.passes.small import calls, outputs_of, small_program
from tests.snapshots import Messages

UNSIGNED = KernelLayout("uint8", 16, 4, 8)
SIGNED = KernelLayout("int8", 4, 1, 4)
WIDE = KernelLayout("int16", 8, 2, 4)


def assert_same_results(before: IntegerProgram, after: IntegerProgram) -> None:
    """Same outputs, but for parameters in another form."""
    for got, want in zip(outputs_of(after), outputs_of(before), strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)


def operands(program: IntegerProgram) -> dict[str, str]:
    """dtype of the first operand of every linear layer."""
    return {
        str(binding.value.attrs["name"]): str(binding.value.args[0].ty.dtype)
        for binding in bindings(program.module["main"])
        if operator_name(binding.value) == "integer.linear"
    }


def requantised_linear(dtype: str, low: int, high: int, zero_point: int):
    """requantise → linear, with constants that do not depend on the arguments."""

    def body(p, inputs):
        multiplier = p.integers("operand.multiplier", 1, 99, (1,), "int32")
        operand = p.emit(
            integer.requantise(
                inputs["x"],
                multiplier,
                name="operand",
                shift=12,
                low=low,
                high=high,
                dtype=dtype,
                zero_point=zero_point,
            )
        )
        return [p.linear("layer", operand, 5)]

    return small_program(body, x="int16")


@pytest.mark.parametrize(
    ("layout", "before", "after", "delta"),
    [
        (UNSIGNED, ("int8", -127, 127, 0), ("uint8", 1, 255, 128), 128),
        (UNSIGNED, ("int8", -128, 100, -7), ("uint8", 0, 228, 121), 128),
        (SIGNED, ("uint8", 0, 255, 20), ("int8", -128, 127, -108), -128),
    ],
)
def test_the_producer_takes_the_offset_and_the_bias_takes_it_back(
    layout: KernelLayout, before: tuple, after: tuple, delta: int
) -> None:
    program = requantised_linear(*before)
    result = OffsetActivations(layout)(program)
    expected = requantised_linear(*after)
    tvm.ir.assert_structural_equal(result.module, expected.module)

    weight = program.parameters["layer.weight"].astype(np.int64)
    bias = program.parameters["layer.bias"] - delta * weight.sum(axis=1)
    assert list(result.parameters) == list(program.parameters)
    assert result.parameters["layer.bias"].dtype == np.int32
    np.testing.assert_array_equal(result.parameters["layer.bias"], bias)
    np.testing.assert_array_equal(result.parameters["layer.weight"], weight)
    assert_same_results(program, result)


@pytest.mark.parametrize(
    ("layout", "dtype"), [(UNSIGNED, "uint8"), (SIGNED, "int8"), (WIDE, "int8"), (WIDE, "uint8")]
)
def test_operands_that_fit_the_instruction_stay(layout: KernelLayout, dtype: str) -> None:
    program = requantised_linear(dtype, 0, 127, 0)
    result = OffsetActivations(layout)(program)
    tvm.ir.assert_structural_equal(result.module, program.module)
    for name, array in program.parameters.items():
        np.testing.assert_array_equal(result.parameters[name], array)


def test_attention_stores_its_result_with_the_offset() -> None:
    result = OffsetActivations(UNSIGNED)(encoder_program())
    attention = next(
        binding.value
        for binding in bindings(result.module["main"])
        if operator_name(binding.value) == "integer.attention"
    )
    attrs = attention.attrs
    assert (attrs["dtype"], attrs["zero_point"], attrs["low"], attrs["high"]) == (
        "uint8",
        128,
        1,
        255,
    )


@pytest.mark.parametrize("layout", [UNSIGNED, SIGNED], ids=["uint8", "int8"])
@pytest.mark.parametrize("preset", ["accurate", "paper"])
def test_a_whole_encoder_computes_the_same(preset: str, layout: KernelLayout) -> None:
    program = encoder_program(preset=preset)
    result = OffsetActivations(layout)(program)
    assert set(operands(result).values()) == {layout.lhs_dtype}
    assert_same_results(program, result)


def mixed_readers(p, inputs):
    """An int8 value read by two linear layers, by an addition, and by the caller."""
    operand = p.requantise("operand", inputs["x"], 0.004)
    first = p.linear("first", operand, 8)
    second = p.linear("second", operand, 8)
    total = p.emit(integer.add(operand, p.requantise("narrow", first, 0.01), name="total"))
    return [second, total, operand]


def test_a_value_with_other_readers_stays_and_gets_one_copy() -> None:
    program = small_program(mixed_readers, x="int16")
    result = OffsetActivations(UNSIGNED)(program)
    assert calls(result.module["main"]) == [
        ("requantise", "operand"),
        ("requantise", "first.operand"),
        ("linear", "first"),
        ("linear", "second"),
        ("requantise", "narrow"),
        ("add", "total"),
    ]
    first, copy = (binding.value for binding in bindings(result.module["main"])[:2])
    assert first.attrs["dtype"] == "int8"
    assert dict(copy.attrs.items()) == {
        "name": "first.operand",
        "operands": "x,multiplier",
        "dtype": "uint8",
        "shift": 0,
        "zero_point": 128,
        "low": 0,
        "high": 255,
    }
    assert list(result.parameters) == [*program.parameters, "ibert.one"]
    np.testing.assert_array_equal(result.parameters["ibert.one"], np.ones(1, np.int32))
    params = [var.name for var in result.module["main"].params]
    assert params[3:] == list(result.parameters)
    assert_same_results(program, result)


def test_an_input_and_an_output_keep_their_form() -> None:
    def body(p, inputs):
        operand = p.requantise("operand", inputs["x"], 0.5)
        return [
            p.linear("from_input", inputs["x"], 4),
            p.linear("from_output", operand, 4),
            operand,
        ]

    program = small_program(body, x="int8")
    result = OffsetActivations(UNSIGNED)(program)
    function = result.module["main"]
    assert str(function.params[2].ty.dtype) == "int8"
    assert str(function.ret_ty.fields[2].dtype) == "int8"
    assert operands(result) == {"from_input": "uint8", "from_output": "uint8"}
    assert [name for op, name in calls(function) if op == "requantise"] == [
        "operand",
        "from_input.operand",
        "from_output.operand",
    ]
    assert_same_results(program, result)


def test_names_of_copies_are_unique_though_their_first_readers_are_one_operator() -> None:
    def body(p, inputs):
        a, b = (p.requantise(name, inputs["x"], gain) for name, gain in (("a", 0.3), ("b", 0.6)))
        total = p.emit(integer.add(a, b, name="total"))
        return [p.linear("reads_a", a, 4), p.linear("reads_b", b, 4), total]

    program = small_program(body, x="int8")
    result = OffsetActivations(UNSIGNED)(program)
    names = [name for _, name in calls(result.module["main"])]
    assert len(set(names)) == len(names)
    assert_same_results(program, result)


def test_layers_that_share_weight_and_bias_are_compensated_apart() -> None:
    def body(p, inputs):
        weight = p.integers("shared.weight", -127, 127, (8, 8), "int8")
        bias = p.integers("shared.bias", -4000, 4000, (8,), "int32")
        first = p.emit(integer.linear(inputs["x"], weight, bias, name="first"))
        narrow = p.requantise("narrow", first, 0.003)
        unsigned = p.requantise("unsigned", first, 0.003, 0, 255, "uint8")
        return [
            p.emit(integer.linear(narrow, weight, bias, name="second")),
            p.emit(integer.linear(unsigned, weight, bias, name="third")),
        ]

    program = small_program(body, x="int8")
    result = OffsetActivations(UNSIGNED)(program)
    sums = program.parameters["shared.weight"].astype(np.int64).sum(axis=1)
    bias = program.parameters["shared.bias"]
    assert list(result.parameters)[:2] == ["shared.weight", "shared.bias"]
    np.testing.assert_array_equal(result.parameters["shared.bias"], bias)
    for layer in ("first", "second"):
        own = result.parameters[f"{layer}.offset_bias"]
        np.testing.assert_array_equal(own, bias - 128 * sums)
    assert "third.offset_bias" not in result.parameters
    assert_same_results(program, result)


@pytest.mark.parametrize("layout", [UNSIGNED, SIGNED], ids=["uint8", "int8"])
def test_the_pass_is_idempotent_and_pure(layout: KernelLayout) -> None:
    for program in (encoder_program(), small_program(mixed_readers, x="int16")):
        module = program.module.script(show_meta=True)
        arrays = {name: array.copy() for name, array in program.parameters.items()}
        once = OffsetActivations(layout)(program)
        twice = OffsetActivations(layout)(once)
        tvm.ir.assert_structural_equal(twice.module, once.module)
        assert list(twice.parameters) == list(once.parameters)
        for name, array in once.parameters.items():
            np.testing.assert_array_equal(twice.parameters[name], array)
        assert program.module.script(show_meta=True) == module
        for name, array in arrays.items():
            np.testing.assert_array_equal(program.parameters[name], array)


def test_a_bias_that_the_offset_pushes_out_of_int32_is_refused(messages: Messages) -> None:
    def body(p, inputs):
        weight = p.parameter("layer.weight", np.full((2, 8), -127, "int8"))
        bias = p.parameter("layer.bias", np.array([0, 2**31 - 100_000], "int32"))
        return [p.emit(integer.linear(inputs["x"], weight, bias, name="encoder.layer.1.output"))]

    with messages.raises(RangeError):
        OffsetActivations(UNSIGNED)(small_program(body, x="int8"))
