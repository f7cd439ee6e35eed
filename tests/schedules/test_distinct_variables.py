"""Copies of an inlined stage: each binds variables of its own."""

from __future__ import annotations

import pytest
import tvm_ffi
from tvm import te, tirx

from ibert_tvm.schedules import schedule_kernel
from ibert_tvm.targets import get_target


def kernel() -> tirx.PrimFunc:
    """Two results, both read a stage that binds a variable."""
    x = te.placeholder((4, 8), "int32", name="x")

    def clipped(i: tirx.Var, j: tirx.Var) -> tirx.Expr:
        t0 = tirx.Var("t0", "int32")
        return tirx.Let(t0, tirx.max(x[i, j], 0), t0 * t0)

    square = te.compute((4, 8), clipped, name="square")
    more = te.compute((4, 8), lambda i, j: square[i, j] + 1, name="more")
    less = te.compute((4, 8), lambda i, j: square[i, 7 - j] - square[i, j], name="less")
    return te.create_prim_func([x, more, less]).with_attr("ibert.kernel", "requantise")


@pytest.mark.parametrize("target", ["x86-64-v3", "armv6-softfloat"])
def test_no_variable_is_bound_twice(target: str) -> None:
    found: list[tirx.Let] = []
    func = schedule_kernel("k", kernel(), get_target(target))
    tvm_ffi.structural_walk(func, (tirx.Let, found.append))
    assert len(found) == 3
    assert not any(one.var.same_as(other.var) for n, one in enumerate(found) for other in found[:n])
