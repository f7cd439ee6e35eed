"""Matrix kernels of microcontrollers: bit-exact on any shape, and few enough instructions."""

from __future__ import annotations

import numpy as np
import pytest

from ibert_tvm.targets import get_target
from tests.arm.bare_kernels import build_kernel, run
from tests.arm.matrix_kernels import attention, linear
from tests.arm.row_program import RowKernel
from tests.arm.tools import board
from tests.examples import examples

TARGETS = ("cortex-m4", "cortex-m3", "cortex-m0", "rv32imc")

# Rows, depth, columns that no tile, word or unrolled loop divides, or that are a single one of it;
# 34 and 106 rows have too few divisors for blocks of 16.
LINEAR = (
    (1, 13, 5, "int8", "none"),
    (1, 4, 2, "uint8", "none"),
    (2, 40, 8, "int8", "gelu"),
    (7, 31, 33, "uint8", "requantise"),
    (9, 64, 48, "int8", "residual"),
    (13, 5, 1, "int8", "none"),
    (34, 36, 8, "uint8", "none"),
    (106, 8, 4, "int8", "none"),
    (8, 16, 8, "int16", "none"),
)
# Sequences, length, heads, channels of a head, padded tokens.
ATTENTION = ((2, 7, 2, 5, 2), (1, 1, 1, 4, 0), (1, 16, 2, 8, 3), (2, 21, 1, 32, 4))

# Executed instructions of one fused linear layer 128 x 384 -> 384 with bias and requantisation,
# 18.9 million multiply-accumulates: what the project set itself (a part of what CMSIS-NN's
# mat_mult_nt_t_s8 takes), and what there is, with 2% for another version of LLVM.
CMSIS_NN = {
    "cortex-m4": 28_700_000,
    "cortex-m3": 49_400_000,
    "cortex-m0": 118_000_000,
    "rv32imc": 82_400_000,
}
# Its mat_mult_nt_t_s4, with one scale for a channel.
CMSIS_NN_HALVES = {"cortex-m4": 58_400_000}
GOALS = {"cortex-m4": 0.75, "cortex-m3": 0.9, "cortex-m0": 0.8, "rv32imc": 0.63}
MEASURED = {
    "cortex-m4": 14_129_017,
    "cortex-m3": 30_232_926,
    "cortex-m0": 54_594_054,
    "rv32imc": 48_759_870,
}
# Of attention with 128 tokens of one head of 64 channels: CMSIS-NN's batch matmul for Q K^T alone.
SCORES = {"cortex-m4": 2_790_000, "cortex-m3": 4_160_000, "cortex-m0": 7_900_000}
SPREAD = 1.02
# Each instruction set in odd sizes; all sizes on the one with products of two pairs.
LINEAR_CASES = [(name, case) for name in TARGETS for case in LINEAR]
LINEAR_EXAMPLES = [
    *(("cortex-m4", case) for case in LINEAR[::2]),
    *((name, LINEAR[index]) for name in TARGETS[1:] for index in (0, 4)),
]
ATTENTION_CASES = [(name, case) for name in TARGETS for case in ATTENTION]
ATTENTION_EXAMPLES = [*((name, ATTENTION[0]) for name in TARGETS), ("cortex-m4", ATTENTION[2])]


def check(kernel: RowKernel, name: str) -> None:
    """Run a kernel and compare all of its outputs with the specification."""
    outputs, counts = run(kernel, get_target(name))
    for got, expected in zip(outputs, kernel.outputs, strict=True):
        np.testing.assert_array_equal(got, expected)
    assert counts.floating_point == 0
    assert counts.unknown == 0


@pytest.mark.representatives(1)
@pytest.mark.qemu
@pytest.mark.parametrize(
    ("name", "case"), examples(LINEAR_CASES, *LINEAR_EXAMPLES, unpack=True), ids=str
)
def test_linear_kernels_equal_the_specification(name: str, case: tuple) -> None:
    rows, depth, columns, dtype, epilogue = case
    target = board(name)
    check(linear(target, rows, depth, columns, dtype=dtype, epilogue=epilogue), name)


@pytest.mark.qemu
@pytest.mark.parametrize("name", examples(TARGETS, "cortex-m4"))
def test_weights_in_half_bytes_are_widened_in_the_kernel(name: str) -> None:
    # Of an odd and of an even number of groups, the last of which is not whole.
    for rows, depth, columns in ((1, 13, 5), (9, 96, 7), (34, 40, 8)):
        check(linear(board(name), rows, depth, columns, dtype="uint8", halves=True), name)


@pytest.mark.slow
@pytest.mark.qemu
def test_half_bytes_take_few_more_instructions_than_bytes() -> None:
    name = "cortex-m4"
    kernel = linear(board(name), 128, 384, 384, halves=True)
    outputs, counts = run(kernel, get_target(name))
    np.testing.assert_array_equal(outputs[0], kernel.outputs[0])
    assert counts.instructions <= 1.15 * MEASURED[name]
    assert counts.instructions <= CMSIS_NN_HALVES[name]


@pytest.mark.qemu
def test_activations_of_16_bits_are_laid_out_too() -> None:
    """Where the instruction takes 16 bits and one row, a copy looks superfluous."""
    check(linear(board("rv32imc"), 8, 16, 8, dtype="int16", epilogue="none"), "rv32imc")


@pytest.mark.representatives(1)
@pytest.mark.qemu
@pytest.mark.parametrize(
    ("name", "case"), examples(ATTENTION_CASES, *ATTENTION_EXAMPLES, unpack=True), ids=str
)
def test_attention_equals_the_specification(name: str, case: tuple) -> None:
    *shape, masked = case
    check(attention(board(name), *shape, masked=masked), name)


@pytest.mark.slow
@pytest.mark.qemu
@pytest.mark.parametrize("name", examples(TARGETS, "cortex-m4"))
def test_a_linear_layer_takes_few_instructions(name: str) -> None:
    kernel = linear(board(name), 128, 384, 384)
    outputs, counts = run(kernel, get_target(name))
    np.testing.assert_array_equal(outputs[0], kernel.outputs[0])
    assert counts.instructions <= GOALS[name] * CMSIS_NN[name]
    assert counts.instructions <= SPREAD * MEASURED[name]


@pytest.mark.slow
@pytest.mark.qemu
@pytest.mark.parametrize("name", examples(SCORES, "cortex-m4"))
def test_products_of_attention_take_few_instructions(name: str) -> None:
    kernel = attention(board(name), 1, 128, 1, 64)
    outputs, counts = run(kernel, get_target(name))
    np.testing.assert_array_equal(outputs[0], kernel.outputs[0])
    products = sum(n for symbol, n in counts.by_symbol.items() if symbol.startswith("ibert_mk_"))
    # Q K^T and P V are of one size.
    assert products <= 2 * SCORES[name]


@pytest.mark.representatives(1)
@pytest.mark.parametrize("name", TARGETS)
def test_matrix_kernels_call_microkernels_and_memory_functions_only(name: str) -> None:
    target = board(name, run=False)
    built = build_kernel(linear(target, 8, 32, 16), target)
    calls = {symbol for symbol in built.undefined if not symbol.startswith("ibert_mk_")}
    assert calls <= {"memset", "memcpy"}
    assert any(symbol.startswith(f"ibert_mk_{target.dot.name}_") for symbol in built.undefined)


@pytest.mark.slow
@pytest.mark.representatives(1)
@pytest.mark.parametrize(("depth", "limit"), [(384, 32 * 1024), (1536, 32 * 1024)])
def test_widened_operands_take_little_memory(depth: int, limit: int) -> None:
    # Of 128 rows only a block is widened at a time.
    for name in TARGETS:
        target = board(name, run=False)
        assert build_kernel(linear(target, 128, depth, 4), target).workspace_bytes <= limit
