"""Rotations in whole programs: one merged product, places without padding, every target."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm import relax

from ibert_tvm.relay_passes import integer
from ibert_tvm.relay_passes.integer.evaluate import evaluate
from ibert_tvm.relay_passes.integer.ranges import analyse_ranges, longest_sequence
from ibert_tvm.relay_passes.integer.relax_ops import read_program
from ibert_tvm.relay_passes.integer.unbounded import check_unbounded
from ibert_tvm.relay_passes.passes import IntegerProgram, TargetKind, phases_of
from ibert_tvm.relay_passes.passes.merge_projections import MergeProjections
from ibert_tvm.relay_passes.spec.rotation import rotation_table
from ibert_tvm.relay_passes.spec.short_requantise import short_factors
from tests.cuda.gpu_models import as_model, build
from tests.examples import examples
from tests.integration.whole_models import assert_bit_exact
from tests.lowering import lowered
from tests.passes.execution import Compiled
from tests.passes.small import CHANNELS, UNPACKED, calls, kernels, small_program
from tests.passes.test_merge_projections import attention, projections
from tests.passes.test_unpadded_attention import SHAPE, batch

POSITIONS = 76


def table(columns: int, positions: int = POSITIONS) -> np.ndarray:
    angles = np.arange(positions)[:, None] * 0.4 ** np.arange(columns // 2)
    return np.concatenate([np.cos(angles), np.sin(angles)], axis=1)


def program(columns: int = CHANNELS // 2, v_too: bool = False) -> IntegerProgram:
    """Two heads of attention whose queries and keys, or all operands, are turned."""

    def body(p: Any, inputs: Mapping[str, relax.Var]) -> list[relax.Var]:
        x = p.words(inputs["input_ids"], CHANNELS, 14)
        x = p.requantise("x", x, 0.9)
        angles = p.parameter("rotary", rotation_table(table(columns)).entries)
        factors = short_factors(np.array([0.9 / 128]), 2**15 - 1, -127, 127)
        multiplier = p.parameter("factor", factors.multipliers)

        def turned(name: str, value: relax.Var) -> relax.Var:
            bounds = {"shift": factors.shift, "low": -127, "high": 127, "dtype": "int8"}
            given = {"name": name, "num_heads": 2, "raised": 7, **bounds}
            return p.emit(integer.rotate(value, angles, multiplier, **given))

        q, k, v = projections(p, x)
        q, k = turned("q_turned", q), turned("k_turned", k)
        v = turned("v_turned", v) if v_too else v
        y = attention(p, inputs, "attended", q, k, v)
        return [p.emit(integer.mask_tokens(y, inputs["attention_mask"], name="out"))]

    return small_program(body)


def test_projections_that_are_rotated_are_one_product() -> None:
    """Emitted before the first of its readers, which are rotations too."""
    p = program()
    after = MergeProjections()(p)
    layers = [name for op, name in calls(after.module["main"]) if op == "linear"]
    assert layers == ["attended.projections"]
    inputs = batch()
    found = evaluate(after.module, inputs, after.parameters)
    np.testing.assert_array_equal(found[0], evaluate(p.module, inputs, p.parameters)[0])


@pytest.mark.parametrize("pack", [False, True])
def test_rotations_read_the_product_in_place(pack: bool) -> None:
    phases = phases_of(TargetKind.PROCESSOR) if pack else UNPACKED
    found = kernels(lowered(program(), "x86-64-v3", [SHAPE], phases).fused.module)
    readers = {name: [op for op, _ in ops] for name, ops in found.items()}
    assert readers["q_turned"] == readers["k_turned"] == ["split_channels", "rotate"]
    assert readers["attended"] == ["split_channels", "attention"]
    assert ("packing.slots" in found) == pack


@pytest.mark.slow
@pytest.mark.parametrize("name", examples(["x86-avx512-vnni", "x86-64-v3", "x86-64"], "x86-64"))
@pytest.mark.parametrize("columns", examples([2, CHANNELS // 2], 2))
def test_places_are_those_of_the_sequence(columns: int, name: str) -> None:
    """Also where padding in front and between is left out."""
    p, inputs = program(columns), batch()
    (expected,) = evaluate(p.module, inputs, p.parameters)
    answer = Compiled(p, name, [SHAPE])(inputs["input_ids"], inputs["attention_mask"])
    np.testing.assert_array_equal(answer[0], expected)


def test_a_whole_batch_is_what_its_sequences_are() -> None:
    p, inputs = program(v_too=True), batch()
    (together,) = evaluate(p.module, inputs, p.parameters)
    for row in range(SHAPE[0]):
        alone = {name: array[row : row + 1] for name, array in inputs.items()}
        found = evaluate(p.module, alone, p.parameters)[0]
        np.testing.assert_array_equal(found[0], together[row])


def test_no_intermediate_leaves_its_interval() -> None:
    p = program()
    report = analyse_ranges(p.module, p.parameters, max_seq_len=SHAPE[1])
    arrays = {name: array.astype("int64") for name, array in batch().items()}
    assert check_unbounded(p.module, arrays, p.parameters, report.details) == []
    assert (report.details["q_turned"].low, report.details["q_turned"].high) == (-127, 127)


def test_the_table_limits_the_sequence() -> None:
    p = program()
    assert longest_sequence(read_program(p.module)) == POSITIONS


@pytest.mark.slow
@pytest.mark.parametrize("target", examples(["t4", "a100"], "t4"))
def test_on_a_gpu(target: str, tmp_path: Path) -> None:
    model = as_model(program())
    library = build(model, target, [SHAPE], tmp_path / "model.so")
    assert_bit_exact(library, model, batch())
