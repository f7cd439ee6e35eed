"""Random programs of poolings, joined and scaled to length 1: three domains and compiled code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from tvm import relax

from ibert_tvm.relay_passes import integer
from ibert_tvm.relay_passes.integer.evaluate import evaluate, evaluate_all
from ibert_tvm.relay_passes.integer.ranges import analyse_ranges
from ibert_tvm.relay_passes.passes import IntegerProgram
from ibert_tvm.relay_passes.spec.layer_norm import LayerNormConstants
from ibert_tvm.relay_passes.spec.logarithm import Logarithm
from tests.examples import examples
from tests.integer.unbounded import check_unbounded
from tests.passes.execution import Compiled, inputs_of
from tests.passes.models import ProgramBuilder
from tests.passes.small import CHANNELS, small_program
from tests.twins import runnable_target


def program(seed: int) -> IntegerProgram:
    """Every pooling of one value; two of them joined, normalised, and a logarithm of a maximum."""

    def body(p: ProgramBuilder, inputs: Mapping[str, relax.Var]) -> Sequence[relax.Var]:
        mask = inputs["attention_mask"]
        table = p.integers("word.weight", -127, 127, (50, CHANNELS), "int8")
        factor = p.integers("word.multiplier", 2**14, 2**15, (1,), "int32")
        x = p.emit(integer.embedding(inputs["input_ids"], table, factor, name="word", shift=8))
        gain = p.integers("gain", 2**12, 2**13, (2 * CHANNELS,), "int32")
        largest = p.emit(integer.max_pool(x, mask, name="max"))
        last = p.emit(integer.last_token(x, mask, name="last"))
        weighted = p.emit(integer.weighted_mean_pool(x, mask, name="weighted", fraction_bits=5))
        root = p.emit(integer.sqrt_mean_pool(x, mask, name="root", fraction_bits=5))
        every = p.emit(integer.max_pool(x, name="unmasked max"))
        slow = p.emit(integer.weighted_mean_pool(x, name="unmasked", fraction_bits=3))
        joined = p.emit(integer.concatenate(weighted, last, name="joined"))
        constants = LayerNormConstants.from_scale(1e-3, 0.0, 2 * CHANNELS)
        stored = {"shift": 14, "low": -32767, "high": 32767, "dtype": "int16"}
        unit = p.emit(integer.rms_norm(joined, gain, constants, name="unit", **stored))
        short = p.emit(
            integer.requantise(
                largest,
                p.integers("m", 1, 2**30, (CHANNELS,), "int32"),
                name="short",
                shift=30,
                low=-(2**14) + 1,
                high=2**14 - 1,
                dtype="int16",
            )
        )
        logarithm = Logarithm.from_scale(2.0 ** -(seed + 3), 2**14 - 1)
        saturated = p.emit(integer.log1p_relu(short, logarithm, name="log"))
        return [largest, last, weighted, root, every, slow, unit, saturated]

    return small_program(body, seed)


@pytest.mark.parametrize("seed", range(3))
def test_nothing_leaves_its_interval(seed: int) -> None:
    p = program(seed)
    ids, mask = inputs_of(3, 5, 50, seed)
    inputs = {"input_ids": ids, "attention_mask": mask}
    report = analyse_ranges(p.module, p.parameters, max_seq_len=8)
    assert check_unbounded(p.module, inputs, p.parameters, report.details) == []
    _, captured = evaluate_all(p.module, inputs, p.parameters)
    for name, value in captured.items():
        low, high = report.values[name]
        assert low <= value.min() and value.max() <= high, name


@pytest.mark.parametrize(
    "target", examples(["x86-avx512-vnni", "x86-64-v3", "x86-64"], "x86-64-v3")
)
def test_compiled_programs_equal_the_specification(target: str) -> None:
    runnable_target(target)
    p = program(1)
    ids, mask = inputs_of(3, 7, 50, 1)
    mask[2] = mask[2, ::-1]  # padding in front
    expected = evaluate(p.module, {"input_ids": ids, "attention_mask": mask}, p.parameters)
    for got, want in zip(Compiled(p, target, [(3, 7)])(ids, mask), expected, strict=True):
        np.testing.assert_array_equal(got, want)
