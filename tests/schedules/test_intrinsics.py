"""Every dot-product instruction computes what its description says, bit for bit."""

from __future__ import annotations

import re

import numpy as np
import pytest
from tvm.s_tir import TensorIntrin
from tvm.script import from_source

from ibert_tvm.schedules.intrinsics.dot import dot_intrinsic, intrinsic_sources, known_intrinsics
from ibert_tvm.schedules.intrinsics.microkernels import is_microkernel
from ibert_tvm.targets import DotInstruction, get_target
from ibert_tvm.targets.processors import PROCESSORS
from tests.schedules.machine import TARGETS, Kernels, runnable

WITH_INSTRUCTION = [name for name in TARGETS if get_target(name).dot.name != "none"]
MNEMONICS = {"vpdpbusd_512": "vpdpbusd", "vpdpbusd_256": "vpdpbusd", "vpmaddwd_256": "vpmaddwd"}


@pytest.fixture(scope="module", params=WITH_INSTRUCTION)
def instruction(request: pytest.FixtureRequest) -> tuple[DotInstruction, Kernels]:
    """A target's instruction, and its description and implementation compiled for it."""
    target = runnable(request.param)
    description, implementation, _ = intrinsic_sources(target.dot)
    sources = {"description": description, "implementation": implementation}
    return target.dot, Kernels({name: from_source(s) for name, s in sources.items()}, target)


def operand_bounds(dot: DotInstruction) -> tuple[int, int]:
    """Values that the kernels put into the broadcast operand; int16 ones are widened bytes."""
    return {"uint8": (0, 255), "int8": (-128, 127), "int16": (-128, 255)}[dot.lhs_dtype]


def check(dot: DotInstruction, kernels: Kernels, a, b, c) -> None:
    a = np.asarray(a, dot.lhs_dtype)
    b, c = np.asarray(b, dot.rhs_dtype), np.asarray(c, "int32")
    expected = c + (a.astype("int64") * b.astype("int64")).sum(axis=1)
    assert -(2**31) <= expected.min() <= expected.max() < 2**31, "the test must not overflow"
    for name in ("description", "implementation"):
        np.testing.assert_array_equal(kernels(name, a, b, c), expected, err_msg=name)


@pytest.mark.representatives(2)
def test_random_operands(instruction) -> None:
    dot, kernels = instruction
    low, high = operand_bounds(dot)
    random = np.random.default_rng(0)
    for _ in range(100):
        check(
            dot,
            kernels,
            random.integers(low, high + 1, dot.depth),
            random.integers(-128, 128, (dot.lanes, dot.depth)),
            random.integers(-(2**30), 2**30, dot.lanes),
        )


def test_extreme_operands_do_not_saturate(instruction) -> None:
    # vpmaddubsw would: 255 * -128 * 2 does not fit its 16-bit sum.
    dot, kernels = instruction
    low, high = operand_bounds(dot)
    for a in (low, high, 0, 1):
        for b in (-128, 127, -1, 0):
            for c in (0, 2**31 - 1 - 255 * 128 * dot.depth, -(2**31) + 255 * 128 * dot.depth):
                shape = (dot.lanes, dot.depth)
                check(dot, kernels, [a] * dot.depth, np.full(shape, b), np.full(dot.lanes, c))


def test_every_lane_and_every_product_counts(instruction) -> None:
    dot, kernels = instruction
    _, high = operand_bounds(dot)
    for lane in range(dot.lanes):
        for k in range(dot.depth):
            a = np.zeros(dot.depth, int)
            b = np.zeros((dot.lanes, dot.depth), int)
            a[k], b[lane, k] = high, -128
            check(dot, kernels, a, b, np.arange(dot.lanes))


def test_the_implementation_is_the_instruction(instruction) -> None:
    dot, kernels = instruction
    # As a whole word: vpdpbusds would saturate.
    assert re.search(rf"\b{MNEMONICS[dot.name]}\b", kernels.assembly)


def test_every_target_has_an_implementation_or_says_none() -> None:
    assert set(MNEMONICS) <= set(known_intrinsics())
    for target in (one for one in PROCESSORS if not one.microkernels):
        known = {*known_intrinsics(), "none"}
        assert target.dot.name in known or is_microkernel(target.dot)


@pytest.mark.parametrize("name", TARGETS)
def test_an_intrinsic_is_registered_once_under_its_name(name: str) -> None:
    dot = get_target(name).dot
    intrinsic = dot_intrinsic(dot)
    if dot.name == "none":
        assert intrinsic is None
        return
    assert intrinsic is not None
    assert intrinsic is dot_intrinsic(dot)
    assert intrinsic == f"ibert.{dot.name}"
    assert TensorIntrin.get(intrinsic) is not None


def test_an_instruction_without_implementation_is_a_key_error() -> None:
    with pytest.raises(KeyError, match="dp4a"):
        intrinsic_sources(DotInstruction("dp4a", "int8", "int8", 4, 4, 4, 4))
