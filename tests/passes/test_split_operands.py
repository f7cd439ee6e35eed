"""SplitOperands: products of 16-bit activations in two parts, where instructions take bytes."""

from __future__ import annotations

import numpy as np
import pytest
import tvm

from ibert_tvm.relay_passes.emit import KernelLayout
from ibert_tvm.relay_passes.integer.ranges import analyse_ranges
from ibert_tvm.relay_passes.passes import IntegerProgram
from ibert_tvm.relay_passes.passes.offset_activations import OffsetActivations
from ibert_tvm.relay_passes.passes.split_operands import SplitOperands
from tests.passes.small import calls, outputs_of, small_program

UNSIGNED = KernelLayout("uint8", 16, 4, 8)
SIGNED = KernelLayout("int8", 4, 1, 4)
WIDENS = [KernelLayout("int16", 8, 2, 4), KernelLayout("int32", 2, 1, 4)]


def two_readers() -> IntegerProgram:
    """A 16-bit value that two layers read, one of them with an output of its own."""

    def body(p, inputs):
        operand = p.requantise("operand", inputs["x"], 0.4, -16256, 16256, "int16")
        narrow = p.requantise("narrow", inputs["x"], 0.004)
        return [
            p.linear("first", operand, 5),
            p.linear("second", operand, 8),
            p.linear("third", narrow, 5),
        ]

    return small_program(body, x="int16")


@pytest.mark.parametrize("layout", [UNSIGNED, SIGNED], ids=["uint8", "int8"])
def test_a_product_becomes_two(layout: KernelLayout) -> None:
    program = two_readers()
    result = SplitOperands(layout)(program)
    assert calls(result.module["main"]) == [
        ("requantise", "operand"),
        ("requantise", "narrow"),
        ("operand_part", "operand.high"),
        ("operand_part", "operand.low"),
        ("linear", "first.high"),
        ("linear", "first.low"),
        ("join_parts", "first"),
        ("linear", "second.high"),
        ("linear", "second.low"),
        ("join_parts", "second"),
        ("linear", "third"),
    ]
    added = {name: a for name, a in result.parameters.items() if name not in program.parameters}
    assert {name: array.shape for name, array in added.items()} == {
        "ibert.no_bias.5": (5,),
        "ibert.no_bias.8": (8,),
    }
    assert not any(array.any() for array in added.values())
    for got, want in zip(outputs_of(result), outputs_of(program), strict=True):
        np.testing.assert_array_equal(got, want)
    whole = OffsetActivations(layout)(result)
    for got, want in zip(outputs_of(whole), outputs_of(program), strict=True):
        np.testing.assert_array_equal(got, want)
    analyse_ranges(whole.module, whole.parameters, max_seq_len=3)


@pytest.mark.parametrize("layout", WIDENS, ids=["int16", "int32"])
def test_kernels_that_widen_multiply_as_before(layout: KernelLayout) -> None:
    program = two_readers()
    assert SplitOperands(layout)(program) is program


@pytest.mark.parametrize("layout", [UNSIGNED, SIGNED], ids=["uint8", "int8"])
def test_any_number_of_16_bits_has_parts(layout: KernelLayout) -> None:
    program = small_program(lambda p, inputs: [p.linear("first", inputs["x"], 5)], x="int16")
    result = OffsetActivations(layout)(SplitOperands(layout)(program))
    for got, want in zip(outputs_of(result), outputs_of(program), strict=True):
        np.testing.assert_array_equal(got, want)
    analyse_ranges(result.module, result.parameters, max_seq_len=3)


def test_a_program_of_bytes_stays() -> None:
    program = small_program(
        lambda p, inputs: [p.linear("layer", p.requantise("operand", inputs["x"], 0.004), 5)],
        x="int16",
    )
    result = SplitOperands(SIGNED)(program)
    tvm.ir.assert_structural_equal(result.module, program.module)
