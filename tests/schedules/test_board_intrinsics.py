"""Every vector instruction of ARM boards computes what its description says, bit for bit."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from tvm import tirx
from tvm.script import from_source

from ibert_tvm.schedules.intrinsics.dot import intrinsic_sources
from ibert_tvm.schedules.intrinsics.matrix import drain_sources
from ibert_tvm.schedules.intrinsics.packing import (
    LOADED_BYTES,
    key_packing_sources,
    zipped_key_sources,
    zipped_value_sources,
)
from ibert_tvm.schedules.intrinsics.reduction import reduction_sources
from ibert_tvm.targets import DotInstruction
from tests.arm.linux_kernels import BoardKernels, KernelFault
from tests.arm.tools import board
from tests.examples import examples

VECTOR_BOARDS = ("rpi4", "aarch64-dotprod", "aarch64-i8mm", "armv7-neon")
# What an instruction is called in assembly.
MNEMONICS = {
    "sdot": ("sdot",),
    "smmla": ("smmla",),
    "smlal_sadalp": ("smull", "smlal", "sadalp"),
    "smull_sadalp": ("smull", "sadalp"),
    "vmlal_vpadal": ("vmull.s8", "vmlal.s8", "vpadal.s16"),
    "vmull_vpadal": ("vmull.s8", "vpadal.s16"),
}


def forms(dot: DotInstruction) -> Iterator[tuple[str, DotInstruction, int]]:
    """Every form of a board's instruction: name, instruction, groups that it takes at once."""
    names = (dot.name, dot.full_range) if dot.full_range else (dot.name,)
    for name in names:
        groups = 1
        while groups <= dot.groups:
            yield f"{name}_{groups}", replace(dot, name=name), groups
            groups *= 2


def alone(source: str) -> tirx.PrimFunc:
    """An intrinsic as a function of its own: what its buffers are part of is unknown."""
    whole = re.sub(r",\s*offset_factor=1(?:,\s*strides=\[[^\]]*\])?", "", source)
    return from_source(whole)


class Board:
    """All intrinsics of a board, each as its description and as its implementation."""

    def __init__(self, name: str) -> None:
        self.target = board(name)
        dot = self.target.dot
        pairs = {form: intrinsic_sources(it, groups) for form, it, groups in forms(dot)}
        pairs["max"] = reduction_sources("max", dot.lanes)
        pairs["sum"] = reduction_sources("sum", dot.lanes)
        pairs["keys"] = zipped_key_sources(dot.lanes, dot.depth)
        pairs["values"] = zipped_value_sources(dot.lanes, dot.depth)
        if dot.rows > 1:
            pairs["drain"] = drain_sources(dot)
        functions = {
            f"{pair}_{which}": alone(source)
            for pair, sources in pairs.items()
            for which, source in zip(("description", "implementation"), sources[:2], strict=True)
        }
        self.kernels = BoardKernels(functions, self.target)

    def check(self, pair: str, expected: np.ndarray, *arrays: np.ndarray) -> None:
        """Both functions of a pair answer as expected."""
        for which in ("description", "implementation"):
            got = self.kernels(f"{pair}_{which}", *arrays)
            np.testing.assert_array_equal(got.reshape(expected.shape), expected, err_msg=which)


@pytest.fixture(scope="module", params=examples(VECTOR_BOARDS, "aarch64-i8mm"))
def intrinsics(request: pytest.FixtureRequest) -> Board:
    return Board(request.param)


def operands(
    dot: DotInstruction, groups: int, a: np.ndarray, b: np.ndarray, c: np.ndarray
) -> tuple[np.ndarray, ...]:
    """A [rows, groups depth], B [lanes, groups depth], C [rows, lanes] as the form takes them."""
    depth, rows = dot.depth, dot.rows
    laid = a.reshape(rows, groups, depth).transpose(1, 0, 2)
    weights = b.reshape(dot.lanes, groups, depth).transpose(1, 0, 2)
    return laid.astype("int8"), weights.astype("int8"), accumulators(dot, c).astype("int32")


def accumulators(dot: DotInstruction, c: np.ndarray) -> np.ndarray:
    """[rows, lanes] as the instruction holds them."""
    if dot.rows == 1:
        return c
    return c.reshape(dot.rows, dot.lanes // dot.rows, dot.rows).transpose(1, 0, 2)


def check(boards: Board, form: str, dot: DotInstruction, groups: int, a, b, c) -> None:
    expected = c + a.astype("int64") @ b.astype("int64").T
    assert -(2**31) <= expected.min() <= expected.max() < 2**31, "the test must not overflow"
    arrays = operands(dot, groups, a, b, c)
    boards.check(form, accumulators(dot, expected), *arrays)


def lowest(dot: DotInstruction) -> int:
    """Smallest weight: products of two groups are added in 16 bits by some."""
    return -127 if dot.full_range not in ("", dot.name) else -128


@pytest.mark.representatives(1)
def test_random_operands(intrinsics: Board) -> None:
    random = np.random.default_rng(0)
    for form, dot, groups in forms(intrinsics.target.dot):
        span = groups * dot.depth
        for _ in range(10):
            a = random.integers(-128, 128, (dot.rows, span))
            b = random.integers(lowest(dot), 128, (dot.lanes, span))
            c = random.integers(-(2**30), 2**30, (dot.rows, dot.lanes))
            check(intrinsics, form, dot, groups, a, b, c)


def test_extreme_operands_neither_saturate_nor_wrap(intrinsics: Board) -> None:
    for form, dot, groups in forms(intrinsics.target.dot):
        span = groups * dot.depth
        room = 2**14 * span
        ends = (-128, 127, 0), (lowest(dot), 127, -1), (0, 2**31 - 1 - room, -(2**31) + room)
        for a, b, c in product(*ends):
            shapes = (dot.rows, span), (dot.lanes, span), (dot.rows, dot.lanes)
            arrays = (np.full(shape, end) for shape, end in zip(shapes, (a, b, c), strict=True))
            check(intrinsics, form, dot, groups, *arrays)


def test_every_lane_and_every_product_counts(intrinsics: Board) -> None:
    for form, dot, groups in forms(intrinsics.target.dot):
        span = groups * dot.depth
        for row, lane in product(range(dot.rows), range(dot.lanes)):
            for k in range(span):
                a, b = np.zeros((dot.rows, span), int), np.zeros((dot.lanes, span), int)
                a[row, k], b[lane, k] = 127, -127
                c = np.arange(dot.rows * dot.lanes).reshape(dot.rows, dot.lanes)
                check(intrinsics, form, dot, groups, a, b, c)


def test_two_products_of_minima_do_not_fit_16_bits(intrinsics: Board) -> None:
    # Why `full_range` exists: the test above would fail with -128 on both sides.
    dot = intrinsics.target.dot
    if not dot.full_range:
        pytest.skip("this instruction adds nothing in 16 bits")
    span = 2 * dot.depth
    a, b = np.full((1, span), -128), np.full((dot.lanes, span), -128)
    arrays = operands(dot, 2, a, b, np.zeros((1, dot.lanes), int))
    right = span * 2**14
    wrapped = intrinsics.kernels(f"{dot.name}_2_implementation", *arrays)
    assert set(wrapped.flat) == {right - dot.depth * 2**16}
    exact = intrinsics.kernels(f"{dot.full_range}_2_implementation", *arrays)
    assert set(exact.flat) == {right}


def test_the_implementations_are_the_instructions(intrinsics: Board) -> None:
    for form, dot, groups in forms(intrinsics.target.dot):
        expected = MNEMONICS[dot.name]
        if groups == 1:
            expected = tuple(name for name in expected if "mlal" not in name)
        found = intrinsics.kernels.mnemonics(f"{form}_implementation")
        assert set(expected) <= {name.rstrip("2") for name in found}, (form, found)


def test_accumulators_are_drained_into_rows(intrinsics: Board) -> None:
    dot = intrinsics.target.dot
    if dot.rows == 1:
        pytest.skip("the accumulators of this instruction lie in rows")
    rows = np.arange(dot.rows * dot.lanes, dtype="int32").reshape(dot.rows, dot.lanes)
    held = np.ascontiguousarray(accumulators(dot, rows))
    intrinsics.check("drain", rows, held, np.zeros_like(rows))


@pytest.mark.parametrize("kind", ["max", "sum"])
def test_reductions_across_lanes(intrinsics: Board, kind: str) -> None:
    lanes = intrinsics.target.dot.lanes
    random = np.random.default_rng(1)
    low, high = -(2**31), 2**31 - 1
    rows = [random.integers(low, high + 1, lanes) for _ in range(10)]
    rows += [np.full(lanes, edge) for edge in (low, high, 0, -1)]
    rows += [np.where(np.arange(lanes) == lane, 7, -5) for lane in range(lanes)]
    for row in rows:
        x = row >> 6 if kind == "sum" else row  # a sum that fits
        for start in (0, -(2**25), 2**25):
            total = max(start, int(x.max())) if kind == "max" else start + int(x.sum())
            arrays = x.astype("int32"), np.array([start], "int32")
            intrinsics.check(kind, np.array([total], "int32"), *arrays)


def test_packing_of_keys(intrinsics: Board) -> None:
    lanes, depth = intrinsics.target.dot.lanes, intrinsics.target.dot.depth
    assert zipped_key_sources(lanes, depth)[0] == key_packing_sources(lanes, depth)[0]
    keys = np.arange(lanes * LOADED_BYTES, dtype="int8").reshape(lanes, LOADED_BYTES)
    expected = keys.reshape(lanes, LOADED_BYTES // depth, depth).transpose(1, 0, 2)
    intrinsics.check("keys", expected, keys, np.zeros(expected.shape, "int8"))


def test_packing_of_values(intrinsics: Board) -> None:
    lanes, depth = intrinsics.target.dot.lanes, intrinsics.target.dot.depth
    blocks = LOADED_BYTES // lanes
    values = np.arange(depth * LOADED_BYTES).astype("int8").reshape(depth, LOADED_BYTES)
    expected = values.reshape(depth, blocks, 1, lanes).transpose(1, 2, 3, 0)
    intrinsics.check("values", expected, values, np.zeros(expected.shape, "int8"))


def test_an_instruction_that_the_processor_lacks_is_noticed() -> None:
    # The gate is real: what runs under a target's emulator needs nothing that the target lacks.
    target = board("aarch64-dotprod")
    source = alone(intrinsic_sources(target.dot)[1])
    kernels = BoardKernels({"sdot": source}, target, processor="cortex-a53")
    arrays = np.zeros(4, "int8"), np.zeros((4, 4), "int8"), np.zeros(4, "int32")
    with pytest.raises(KernelFault, match="signal 4 in kernel sdot") as caught:
        kernels("sdot", *arrays)
    assert caught.value.signal == 4


def test_code_for_a_plain_processor_runs_on_one() -> None:
    target = board("rpi4")
    source = alone(intrinsic_sources(target.dot)[1])
    kernels = BoardKernels({"smull": source}, target, processor="cortex-a53")
    got = kernels("smull", np.ones(2, "int8"), np.ones((4, 2), "int8"), np.zeros(4, "int32"))
    np.testing.assert_array_equal(got, [2, 2, 2, 2])
