"""Products with vectors for distances: their kernels on every family, and in programs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from tvm import relax, tirx

from ibert_tvm.relay_passes import integer
from ibert_tvm.relay_passes.errors import LoweringError
from ibert_tvm.relay_passes.integer.operators.positions import DistanceProducts
from ibert_tvm.relay_passes.integer.ranges import analyse_ranges
from ibert_tvm.relay_passes.integer.types import TensorType
from ibert_tvm.relay_passes.passes import IntegerProgram, TargetKind, phases_of
from ibert_tvm.relay_passes.spec.short_requantise import short_factors
from ibert_tvm.targets import TargetDescription, get_target
from tests.arm.row_program import RowKernel
from tests.examples import examples
from tests.lowering import lowered
from tests.passes.execution import Compiled, inputs_of, reference
from tests.passes.small import kernels, small_program
from tests.schedules.everywhere import (
    check_on_board,
    check_on_gpu,
    check_on_microcontroller,
    check_on_this_processor,
    program_kernels,
)
from tests.schedules.machine import TARGETS, runnable
from tests.snapshots import Messages

HEADS, WIDTH, POSITIONS = 3, 20, 17
CHANNELS = HEADS * WIDTH
# A length that vectors divide, and one that they do not, which is as long as there are positions.
LENGTHS = (16, POSITIONS)


def program() -> IntegerProgram:
    """One attention with both terms, whose queries, keys and values are projections."""

    def body(p: Any, inputs: Mapping[str, relax.Var]) -> list[relax.Var]:
        x = p.words(inputs["input_ids"], CHANNELS, 15)
        x = p.requantise("x", x, 1.2, -127, 127, "int8")
        parts = {}
        for name in "qkv":
            weight = p.integers(f"{name}.weight", -127, 127, (CHANNELS, CHANNELS), "int8")
            bias = p.integers(f"{name}.bias", -999, 999, (CHANNELS,), "int32")
            product = p.emit(integer.linear(x, weight, bias, name=name))
            by = short_factors(np.full(CHANNELS, 2.0**-10), 2**26, -127, 127)
            constants = {"multiplier": by.multipliers, "pre_shift": by.pre_shifts}
            parts[name] = p.emit(
                integer.requantise_short(
                    product,
                    **{key: p.parameter(f"{name}.{key}", x) for key, x in constants.items()},
                    name=f"{name}.matmul",
                    shift=by.shift,
                    low=-127,
                    high=127,
                    dtype="int8",
                )
            )
        terms = {}
        for label, name in (("query_term", "q"), ("key_term", "k")):
            shape = (CHANNELS, 2 * POSITIONS - 1)
            vectors = p.integers(f"{label}.table", -9000, 9000, shape, "int16")
            given = {"name": label, "num_heads": HEADS, "shift": 7}
            terms[label] = p.emit(integer.distance_products(parts[name], vectors, **given))
        factors = short_factors(np.full(CHANNELS, 0.008), 2**14, -127, 127)
        multiplier = p.parameter("multiplier", factors.multipliers)
        given = {"heads": HEADS, "scale": 2e-4, "shift": factors.shift, **terms}
        mask = inputs["attention_mask"]
        value = p.attention("attended", [*parts.values()], mask, multiplier, **given)
        return [p.emit(integer.mask_tokens(value, inputs["attention_mask"], name="out"))]

    return small_program(body)


def term_kernels(target: TargetDescription, length: int = LENGTHS[1]) -> list[RowKernel]:
    """The kernels of terms of two sequences, with inputs and what the specification says."""

    def is_term(func: tirx.PrimFunc) -> bool:
        return str((func.attrs or {}).get("ibert.layer", "")).endswith("_term")

    phases = phases_of(TargetKind.PROCESSOR)
    found = program_kernels(program(), target, (2, length), is_term, phases)
    assert len(found) in (1, 2), "kernels that differ in constants only may be one"
    return found


def test_entries_are_products_by_head_and_distance() -> None:
    kernel = term_kernels(get_target("x86-64-v3"))[0]
    x, table = (array.astype(np.int64) for array in kernel.inputs)
    assert x.shape == (2 * POSITIONS, 3 * CHANNELS), "a run of the merged projection"
    expected = kernel.outputs[0]
    for batch, i, h, j in ((0, 0, 0, 0), (1, 3, 2, 16), (0, 16, 1, 0), (1, 8, 0, 9)):
        # Queries are the first run, keys the second: the first kernel may be that of either.
        sums = []
        for run in range(2):
            first = run * CHANNELS + h * WIDTH
            row = x[batch * POSITIONS + i, first : first + WIDTH]
            sums.append(row @ table[h * WIDTH : (h + 1) * WIDTH, j - i + POSITIONS - 1])
        assert expected[batch, i, h, j] in [(total + 64) >> 7 for total in sums]


def both_lengths(target: TargetDescription) -> list[RowKernel]:
    return [kernel for length in LENGTHS for kernel in term_kernels(target, length)]


@pytest.mark.parametrize("name", examples(TARGETS, "x86-64-v3"))
def test_on_this_processor(name: str) -> None:
    target = runnable(name)
    check_on_this_processor(both_lengths(target), target)


@pytest.mark.slow
@pytest.mark.qemu
@pytest.mark.parametrize("name", ["rpi4", pytest.param("armv7-neon", marks=pytest.mark.slow)])
def test_on_boards(name: str) -> None:
    check_on_board(both_lengths, name)


@pytest.mark.qemu
@pytest.mark.parametrize("name", examples(("cortex-m0", "cortex-m4", "cortex-m55"), "cortex-m4"))
def test_on_microcontrollers(name: str) -> None:
    check_on_microcontroller(term_kernels(get_target(name))[0], get_target(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", examples(("t4", "a100"), "t4"))
def test_on_a_gpu(name: str) -> None:
    check_on_gpu(term_kernels(get_target(name))[0], name)


def test_projections_of_terms_are_merged() -> None:
    """What reads queries and keys besides attention reads them in place."""
    found = kernels(lowered(program(), "x86-64-v3", [(2, 9)]).fused.module)
    linear = [calls for calls in found.values() if calls[0][0] == "linear"]
    assert len(linear) == 1


@pytest.mark.slow
@pytest.mark.parametrize("length", examples((1, 5, POSITIONS), 5))
def test_a_program_of_a_padded_batch(length: int) -> None:
    p, shape = program(), (3, length)
    ids, mask = inputs_of(*shape, 50, 0)
    got = Compiled(p, "x86-64-v3", [shape])(ids, mask)
    for one, other in zip(got, reference(p, ids, mask), strict=True):
        np.testing.assert_array_equal(one, other)


def test_programs_with_terms_keep_padding() -> None:
    found = kernels(lowered(program(), "x86-64-v3", [(2, 9)]).fused.module)
    assert not any(name.startswith("packing") for name in found)


def test_longer_sequences_are_refused(messages: Messages) -> None:
    report = analyse_ranges(program().module, program().parameters)
    assert report.max_seq_len == POSITIONS
    record = DistanceProducts("query_term", HEADS, 7)
    types = {
        "x": TensorType((2, POSITIONS + 1, CHANNELS), "int8"),
        "table": TensorType((CHANNELS, 2 * POSITIONS - 1), "int16"),
    }
    with messages.raises(LoweringError):
        record.result_type(types)
