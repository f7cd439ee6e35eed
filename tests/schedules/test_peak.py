"""The kernel that measures the ceiling: it computes what it says, step by step."""

from __future__ import annotations

import numpy as np
import pytest
import tvm

from ibert_tvm.schedules.peak import peak_kernel, peak_shapes
from ibert_tvm.targets import DotInstruction, TargetDescription, get_target, target_names
from ibert_tvm.targets.host import cpu_features, missing_features
from ibert_tvm.targets.pipeline import cpu_pipeline

STEPS, THREADS = 70, 2


def _runnable() -> list[TargetDescription]:
    """Descriptions with a dot product that this machine can run, each instruction once."""
    found: dict[DotInstruction, TargetDescription] = {}
    for name in target_names():
        description = get_target(name)
        there = not missing_features(description, cpu_features()) and description.gpu is None
        if there and description.elf_machine == "EM_X86_64" and description.dot.name != "none":
            found.setdefault(description.dot, description)
    return list(found.values())


@pytest.mark.isa
@pytest.mark.parametrize("description", _runnable(), ids=lambda d: d.dot.name)
def test_every_step_adds_one_dot_product_to_every_accumulator(
    description: TargetDescription,
) -> None:
    dot = description.dot
    shapes = peak_shapes(dot, THREADS)
    random = np.random.default_rng(0)
    lhs = random.integers(0, 127, shapes.lhs).astype(dot.lhs_dtype)
    rhs = random.integers(-127, 128, shapes.rhs).astype(dot.rhs_dtype)
    start = random.integers(-1000, 1000, shapes.accumulators).astype("int32")
    executable = tvm.compile(
        tvm.IRModule({"main": peak_kernel(dot, THREADS, STEPS)}),
        target=tvm.target.Target(dict(description.tvm_target)),
        tir_pipeline=cpu_pipeline(description),
    )
    result = tvm.runtime.tensor(start)
    executable.jit()["main"](tvm.runtime.tensor(lhs), tvm.runtime.tensor(rhs), result)

    periods, operands, _ = shapes.lhs
    products = lhs.astype(np.int64) @ rhs.astype(np.int64).T  # [periods, operands, lanes]
    chains = np.arange(shapes.accumulators[1]) % operands
    added = sum(products[step % periods][chains] for step in range(STEPS))
    np.testing.assert_array_equal(result.numpy(), start + added)
    assert shapes.products == THREADS * shapes.accumulators[1] * dot.lanes * dot.depth


def test_a_target_without_the_instruction_has_no_such_kernel() -> None:
    assert peak_kernel(get_target("x86-64").dot, 1, STEPS) is None
