"""ConstantsAsArguments: kernels that differ in numbers only become one."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from ibert_tvm.relay_passes import integer
from ibert_tvm.relay_passes.integer.evaluate import evaluate
from ibert_tvm.relay_passes.passes import IntegerProgram, TargetKind, phases_of
from ibert_tvm.relay_passes.passes.share_kernels import called_kernels
from ibert_tvm.schedules import schedule_module
from ibert_tvm.targets.build import build_executable
from tests.lowering import lowered
from tests.passes.execution import inputs_of
from tests.passes.models import ProgramBuilder
from tests.passes.small import CHANNELS, small_program
from tests.twins import runnable_target

SHAPE = (2, 3)
VOCABULARY = 11
DESCRIPTION = runnable_target("x86-64")


def attentions(*scales: float) -> IntegerProgram:
    """Attention of one value, once per scale of its exponential."""

    def body(p: ProgramBuilder, inputs):
        table = p.integers("table", -127, 127, (VOCABULARY, CHANNELS), "int8")
        factor = p.integers("factor", 2**20, 2**24, (VOCABULARY,), "int32")
        rows = integer.embedding(inputs["input_ids"], table, factor, name="rows", shift=16)
        x = p.requantise("x", p.emit(rows), 1 / 200, channels=CHANNELS)
        multiplier = p.integers("multiplier", 2**14, 2**15 - 1, (CHANNELS,), "int16")
        return [
            p.attention(
                f"attention.{place}", [x, x, x], inputs["attention_mask"], multiplier, scale=scale
            )
            for place, scale in enumerate(scales)
        ]

    return small_program(body)


def kernels(module: tvm.IRModule) -> set[str]:
    return {
        var.name_hint
        for var, function in module.functions_items()
        if isinstance(function, tirx.PrimFunc) and "attention" in var.name_hint
    }


def emitted(program: IntegerProgram, compact: bool) -> IntegerProgram:
    kind = TargetKind.BARE_METAL if compact else TargetKind.PROCESSOR
    return lowered(program, DESCRIPTION, [SHAPE], phases_of(kind)).program


def constants(program: IntegerProgram) -> dict[str, np.ndarray]:
    return {name: a for name, a in program.parameters.items() if name.endswith(".constants")}


def test_kernels_of_other_constants_become_one_with_an_array_each() -> None:
    program = attentions(1e-3, 1.1e-3, 1.2e-3)
    assert len(kernels(emitted(program, compact=False).module)) == 3
    compact = emitted(program, compact=True)
    assert kernels(compact.module) == {"main_b2_s3_attention_0"}
    function = compact.module["main_b2_s3"]
    names = [var.name_hint for var in called_kernels(function)]
    assert names.count("main_b2_s3_attention_0") == 3
    arrays = constants(compact)
    assert len(arrays) == 3
    assert len({array.tobytes() for array in arrays.values()}) == 3
    assert {str(array.dtype) for array in arrays.values()} == {"int32"}
    assert [var.name for var in function.params][-3:] == list(arrays)


def test_equal_kernels_and_a_single_one_keep_their_constants() -> None:
    assert constants(emitted(attentions(1e-3, 1e-3), compact=True)) == {}
    assert constants(emitted(attentions(1e-3), compact=True)) == {}


def test_nothing_becomes_an_argument_where_it_is_not_asked_for() -> None:
    assert constants(emitted(attentions(1e-3, 1.1e-3), compact=False)) == {}


@pytest.mark.representatives(1)
@pytest.mark.parametrize("scales", [(1e-3, 1.1e-3), (1e-3, 0.8e-3, 1.2e-3, 0.8e-3)])
def test_compiled_code_computes_the_same(scales: tuple[float, ...]) -> None:
    program = attentions(*scales)
    compact = emitted(program, compact=True)
    assert constants(compact)
    module = schedule_module(compact.module, DESCRIPTION)
    machine = relax.VirtualMachine(build_executable(module, DESCRIPTION), tvm.cpu())
    ids, mask = inputs_of(*SHAPE, VOCABULARY, seed=0)
    inputs = {"input_ids": ids, "attention_mask": mask}
    arguments = [*inputs.values(), *compact.parameters.values()]
    results = machine["main_b2_s3"](*(tvm.runtime.tensor(a) for a in arguments))
    expected = evaluate(program.module, inputs, program.parameters)
    assert len(results) == len(expected) == len(scales)
    for result, wanted in zip(results, expected, strict=True):
        np.testing.assert_array_equal(result.numpy()[mask != 0], wanted[mask != 0])
    assert not np.array_equal(expected[0], expected[1])
