"""Division on a GPU: exact for every sign and width, and never by what computes with floats."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest
import tvm
from tvm import ir, te, tirx

from ibert_tvm.relay_passes.spec.q15 import FLOOR_LOG2, NORMALISED_RECIPROCAL, SQUARE_ROOT
from ibert_tvm.schedules.cuda.elementwise import ElementwiseRule
from ibert_tvm.targets import get_target
from ibert_tvm.targets.cuda.pipeline import lower_division
from tests.cuda.stand_in_gpu import run_kernel

OPERATORS = {
    "floordiv": (tirx.floordiv, lambda a, b: a // b),
    "floormod": (tirx.floormod, lambda a, b: a % b),
    "truncdiv": (tirx.truncdiv, lambda a, b: (a - np.fmod(a, b)) // b),
    "truncmod": (tirx.truncmod, np.fmod),
}


def operands(dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of numbers: all of the ends and round powers of two, and random ones of all lengths."""
    limits = np.iinfo(dtype)
    marks = {0, limits.min, limits.min + 1, limits.max}
    for power in range(limits.bits - 1):
        marks |= {sign * ((1 << power) + step) for sign in (1, -1) for step in (-1, 0, 1)}
    edges = np.array([mark for mark in sorted(marks) if limits.min <= mark <= limits.max], dtype)
    pairs = np.array(
        [
            pair
            for pair in itertools.product(edges, edges)
            # The quotient of the least number and -1 does not fit its type.
            if pair[1] != 0 and (pair != (limits.min, -1) or limits.min == 0)
        ],
        dtype,
    )
    random = np.random.default_rng(3)
    size = 40000
    shifts = random.integers(0, limits.bits, (size, 2)).astype(dtype)
    others = random.integers(limits.min, limits.max, (size, 2), endpoint=True, dtype=dtype)
    others >>= shifts
    whole = (others[:, 0] != limits.min) | (others[:, 1].astype("int64") != -1)
    others = others[(others[:, 1] != 0) & whole]
    a, b = np.concatenate([pairs, others]).T
    count = a.size - a.size % 16
    return a[:count].reshape(-1, 16), b[:count].reshape(-1, 16)


def quotient(op, x, y, i, j):
    """Entry of a result."""
    return op(x[i, j], y[i, j])


@pytest.mark.representatives(1)
@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"])
def test_division_equals_that_of_numpy(dtype: str) -> None:
    a, b = operands(dtype)
    x, y = (te.placeholder(a.shape, dtype, name=name) for name in "ab")
    results = [
        te.compute(a.shape, functools.partial(quotient, op, x, y), name=name)
        for name, (op, _) in OPERATORS.items()
    ]
    func = te.create_prim_func([x, y, *results])
    written = ElementwiseRule().schedule(func, get_target("t4"))
    found = run_kernel(written, [a, b, *[np.zeros_like(a)] * len(results)], orders=["forward"])
    for name, got in zip(OPERATORS, found[2:], strict=True):
        np.testing.assert_array_equal(got, OPERATORS[name][1](a, b), name)


def called(operator: str, x: tirx.Expr) -> tirx.Expr:
    return tirx.call_intrin("int32", operator, x)


def test_square_roots_and_logarithms_are_exact() -> None:
    random = np.random.default_rng(4)
    roots = np.concatenate(
        [
            np.arange(2000),
            2 ** np.arange(31) - 1,
            2 ** np.arange(31),
            random.integers(0, 2**31, 60000) >> random.integers(0, 31, 60000),
            np.arange(2**31 - 4000, 2**31),
        ]
    ).astype("int64")
    squares = roots[:, None] ** 2 + np.array([0, -1, 1, 2]) * (roots[:, None] > 0)
    n = squares[(squares >= 0) & (squares < 2**62)]
    n = n[: n.size - n.size % 16].reshape(-1, 16)
    x = te.placeholder(n.shape, "int64", name="n")
    root = te.compute(n.shape, lambda i, j: called(SQUARE_ROOT, x[i, j]), name="root")
    log = te.compute(n.shape, lambda i, j: called(FLOOR_LOG2, tirx.max(root[i, j], 1)), name="log")
    written = ElementwiseRule().schedule(te.create_prim_func([x, root, log]), get_target("t4"))
    blank = np.zeros(n.shape, "int32")
    _, got, logs = run_kernel(written, [n, blank, blank], orders=["forward"])
    wide = got.astype("int64")
    assert (wide**2 <= n).all()
    assert (n < (wide + 1) ** 2).all()
    bits = np.array([int(value).bit_length() for value in np.maximum(got, 1).ravel()])
    np.testing.assert_array_equal(logs.ravel(), bits - 1)


def test_reciprocals_are_exact() -> None:
    random = np.random.default_rng(5)
    # With the last four a relative error of 2^-30 in the wrong direction is seen.
    marks = [2377343, 4754686, 9596017, 15461689]
    n = np.concatenate(
        [
            np.arange(1, 5000),
            2 ** np.arange(31),
            2 ** np.arange(1, 32) - 1,
            random.integers(1, 2**31, 200000) >> random.integers(0, 20, 200000),
            marks,
        ]
    )
    n = np.maximum(n, 1)[-(n.size - n.size % 16) :].astype("int32").reshape(-1, 16)
    x = te.placeholder(n.shape, "int32", name="n")
    result = te.compute(n.shape, lambda i, j: called(NORMALISED_RECIPROCAL, x[i, j]), name="result")
    written = ElementwiseRule().schedule(te.create_prim_func([x, result]), get_target("t4"))
    _, got = run_kernel(written, [n, np.zeros_like(n)], orders=["forward"])
    bits = np.array([int(value).bit_length() - 1 for value in n.ravel()]).reshape(n.shape)
    np.testing.assert_array_equal(got, (1 << (15 + bits)) // n.astype("int64"))


def lowered(expr: tirx.Expr) -> str:
    """What the pass makes of an expression."""
    function = tirx.PrimFunc([], tirx.Evaluate(expr))
    module = lower_division(tvm.IRModule({"main": function}))
    return str(module["main"].body.value)


def test_division_by_a_constant_is_left() -> None:
    x = tirx.Var("x", "int32")
    assert lowered(tirx.floordiv(x, 7)) == "x // 7"
    assert lowered(tirx.truncmod(x, 7)) == "T.truncmod(x, 7)"


def test_a_division_becomes_a_call() -> None:
    a, b = tirx.Var("a", "int32"), tirx.Var("b", "int32")
    assert 'T.call_pure_extern("int32", "ibert_divide", dividend, divisor)' in lowered(
        tirx.truncdiv(a, b)
    )


def test_idempotent() -> None:
    a, b = tirx.Var("a", "int64"), tirx.Var("b", "int64")
    module = tvm.IRModule({"main": tirx.PrimFunc([a, b], tirx.Evaluate(tirx.floordiv(a, b)))})
    once = lower_division(module)
    ir.assert_structural_equal(lower_division(once), once)
