"""Programs of other kinds without runtime: other presets, odd sizes, images, inputs that return."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ibert_tvm.relay_passes.integer.evaluate import evaluate
from ibert_tvm.relay_passes.passes import IntegerProgram, function_name
from ibert_tvm.schedules import schedule_module
from ibert_tvm.targets.aot import BareModel, Interface, ShapeSpec, TensorSpec, compile_bare
from ibert_tvm.targets.aot.library import export_bare_library
from tests.lowering import lowered
from tests.passes.execution import inputs_of, reference
from tests.passes.models import encoder_program
from tests.passes.small import CHANNELS, small_program
from tests.targets.aot.c_interface import Caller
from tests.twins import runnable_target

SHAPES = [(1, 5), (3, 9)]


def compiled(
    program: IntegerProgram,
    path: Path,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    target: str = "x86-64",
) -> tuple[BareModel, Caller]:
    """Compile a program, link it, and prepare to call it."""
    description = runnable_target(target)
    kernels = lowered(program, description, SHAPES).program
    functions = tuple(ShapeSpec(function_name(*shape), *shape) for shape in SHAPES)
    interface = Interface(functions, tuple(inputs), tuple(outputs))
    module = schedule_module(kernels.module, description)
    model = compile_bare(module, dict(kernels.parameters), description, interface)
    metadata = {"functions": [{"name": function.name} for function in functions]}
    export_bare_library(model, metadata, description, path)
    return model, Caller(path, max(model.arena_bytes.values()))


def tokens(dtype: str = "int32") -> list[TensorSpec]:
    return [
        TensorSpec(name, dtype, ("batch", "seq_len")) for name in ("input_ids", "attention_mask")
    ]


@pytest.mark.slow_cases(1)
@pytest.mark.parametrize(
    ("target", "settings"),
    [
        pytest.param("x86-64", {"preset": "paper", "roberta": True}, marks=pytest.mark.slow),
        ("x86-64-v3", {"preset": "accurate", "activation": "relu", "masked": True}),
    ],
    ids=lambda value: value if isinstance(value, str) else value["preset"],
)
@pytest.mark.slow
def test_encoders_of_odd_sizes(target: str, settings: dict, tmp_path: Path) -> None:
    program = encoder_program(hidden=30, heads=3, feed_forward=50, **settings)
    outputs = reference(program, *inputs_of(1, 5, 50, 0))
    kinds = [str(output.dtype) for output in outputs]
    specs = [
        TensorSpec("last", kinds[0], ("batch", "seq_len", 30), 0.5),
        TensorSpec("mean", kinds[1], ("batch", 30), 0.5),
        TensorSpec("pooled", kinds[2], ("batch", 30), 0.5),
    ]
    _, caller = compiled(program, tmp_path / "model.so", tokens(), specs, target)
    for batch, seq_len in SHAPES:
        ids, mask = inputs_of(batch, seq_len, 50, seed=batch)
        got = caller.run({"input_ids": ids, "attention_mask": mask}, offset=1)
        for one, other in zip(got, reference(program, ids, mask), strict=True):
            kept = mask.astype(bool) if one.ndim == 3 else slice(None)
            np.testing.assert_array_equal(one[kept], other[kept])


def test_results_that_are_another_result_or_an_input(tmp_path: Path) -> None:
    """They are copied: the driver has an array of the caller's for each."""

    def body(p, values):
        x = p.requantise("x", values["hidden"], 0.5)
        return x, values["attention_mask"], p.requantise("y", x, 0.25), x

    program = small_program(body, hidden="int32")
    hidden = TensorSpec("hidden", "int32", ("batch", "seq_len", CHANNELS))
    outputs = [
        TensorSpec("x", "int8", ("batch", "seq_len", CHANNELS)),
        TensorSpec("mask", "int32", ("batch", "seq_len")),
        TensorSpec("y", "int8", ("batch", "seq_len", CHANNELS)),
        TensorSpec("again", "int8", ("batch", "seq_len", CHANNELS)),
    ]
    model, caller = compiled(program, tmp_path / "model.so", [*tokens(), hidden], outputs)
    assert model.driver_c.count("to[i] = from[i];") == 2 * len(SHAPES)
    random = np.random.default_rng(4)
    for batch, seq_len in SHAPES:
        inputs = {
            "input_ids": random.integers(0, 9, (batch, seq_len)).astype("int32"),
            "attention_mask": random.integers(-5, 5, (batch, seq_len)).astype("int32"),
            "hidden": random.integers(-300, 300, (batch, seq_len, CHANNELS)).astype("int32"),
        }
        for one, other in zip(
            caller.run(inputs), evaluate(program.module, inputs, program.parameters), strict=True
        ):
            np.testing.assert_array_equal(one, other)


@pytest.mark.slow
def test_no_kernel_computes_with_floats_by_construction() -> None:
    """On a processor without floating-point unit it could only call helpers, which are refused."""
    description = runnable_target("x86-64")
    soft = {**description.tvm_target, "mattr": ["+soft-float", "-sse", "-x87", "-mmx"]}
    description = replace(description, tvm_target=soft, vector_lanes=1)
    program = encoder_program(hidden=32, heads=2, feed_forward=48, masked=True)
    kernels = lowered(program, description, SHAPES[:1]).program
    interface = Interface(
        (ShapeSpec(function_name(*SHAPES[0]), *SHAPES[0]),),
        tuple(tokens()),
        (
            TensorSpec("last", "int16", ("batch", "seq_len", 32)),
            TensorSpec("mean", "int32", ("batch", 32)),
            TensorSpec("pooled", "int32", ("batch", 32)),
        ),
    )
    module = schedule_module(kernels.module, description)
    model = compile_bare(module, dict(kernels.parameters), description, interface)
    called = {name for kernel in model.kernels for name in kernel.undefined}
    assert called <= {"memcpy", "memmove", "memset"}
    assert len(model.kernels) > 10
