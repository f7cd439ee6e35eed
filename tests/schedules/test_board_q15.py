"""The 16-bit product of ARM boards is one instruction, and what the specification says."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from tvm import s_tir, te, tirx

from ibert_tvm.relay_passes.spec.q15 import q15_product
from ibert_tvm.relay_passes.spec.values import q15_multiply
from ibert_tvm.targets import get_target
from tests.arm.linux_kernels import BoardKernels
from tests.arm.tools import BOARDS, board

LENGTH = 64
INSTRUCTIONS = {"EM_AARCH64": "sqrdmulh", "EM_ARM": "vqrdmulh.s16"}


def product_kernel(lanes: int) -> tirx.PrimFunc:
    """``C = q15(A, B)`` on vectors of so many lanes."""
    a, b = (te.placeholder((LENGTH,), "int16", name=name) for name in "AB")
    result = te.compute(
        a.shape, lambda i: q15_product(a[i].asobject(), b[i].asobject()), name="product"
    )
    schedule = s_tir.Schedule(te.create_prim_func([a, b, result]))
    (loop,) = schedule.get_loops(schedule.get_sblock("product"))
    if lanes > 1:
        schedule.vectorize(schedule.split(loop, [None, lanes])[1])
    return schedule.mod["main"]


def pairs() -> np.ndarray:
    """[n, 2, LENGTH] int16: all pairs of ends and middles but that of two minima; random ones."""
    ends = (-(2**15), -(2**15) + 1, -(2**14), -257, -1, 0, 1, 2, 255, 2**14, 2**15 - 2, 2**15 - 1)
    listed = [pair for pair in product(ends, ends) if pair != (-(2**15), -(2**15))]
    random = np.random.default_rng(0).integers(-(2**15) + 1, 2**15, (30 * LENGTH, 2))
    both = np.concatenate([np.array(listed), random])
    both = both[: len(both) // LENGTH * LENGTH]
    return both.reshape(-1, LENGTH, 2).transpose(0, 2, 1).astype("int16")


@pytest.mark.representatives(1)
@pytest.mark.parametrize(
    "name", [name for name in BOARDS if get_target(name).elf_machine in INSTRUCTIONS]
)
def test_products_are_those_of_the_specification(name: str) -> None:
    target = board(name)
    one_instruction = dict(target.q15_multiply)
    # 16 are two registers.
    kernels = BoardKernels({f"q15_{n}": product_kernel(n) for n in (1, 4, 8, 16)}, target)
    for lanes in (1, 4, 8, 16):
        for a, b in pairs():
            got = kernels(f"q15_{lanes}", a, b, np.zeros(LENGTH, "int16"))
            expected = q15_multiply(a.astype("int64"), b.astype("int64"))
            np.testing.assert_array_equal(got, expected, err_msg=f"{lanes} lanes")
        found = INSTRUCTIONS[target.elf_machine] in kernels.mnemonics(f"q15_{lanes}")
        assert found == (lanes > 1 and bool(one_instruction))
    assert set(one_instruction) == (set() if name == "armv6-softfloat" else {4, 8})
