"""Harness of the two domains: a specification function on arrays and compiled through LLVM."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ibert_tvm.relay_passes.spec.arithmetic import VECTORS, Arithmetic


def _storage(low: int, high: int) -> str:
    for dtype in ("int8", "int16", "int32"):
        if np.iinfo(dtype).min <= low and high <= np.iinfo(dtype).max:
            return dtype
    return "int64"


def _compile_and_run(
    function: Callable[..., Any],
    operands: tuple[tuple[np.ndarray, int, int], ...],
    vectorise: bool,
    target: str | None,
    arithmetic: Arithmetic,
) -> tuple[np.ndarray, Any]:
    import tvm
    from tvm import te

    from ibert_tvm.relay_passes.spec.values import Ranged, trace
    from ibert_tvm.targets.pipeline import cpu_pipeline
    from tests.twins import runnable_target

    description = None if target is None else runnable_target(target)

    arrays = [np.ascontiguousarray(array, _storage(low, high)) for array, low, high in operands]
    (size,) = arrays[0].shape
    inputs = [te.placeholder((size,), str(array.dtype)) for array in arrays]
    traced: list[Ranged] = []

    def body(i: Any) -> Any:
        values = [
            Ranged(low, high, tensor[i], arithmetic=arithmetic)
            for tensor, (_, low, high) in zip(inputs, operands, strict=True)
        ]
        traced.append(trace(function, *values))
        return traced[0].expr

    output = te.compute((size,), body, name="output")
    module = tvm.IRModule({"main": te.create_prim_func([*inputs, output])})
    if vectorise:
        schedule = tvm.s_tir.Schedule(module)
        (loop,) = schedule.get_loops(schedule.get_sblock("output"))
        # Lanes of 16 bits, so that 16-bit products fill a register.
        lanes = 8 if description is None else 2 * description.vector_lanes
        schedule.vectorize(schedule.split(loop, [None, lanes])[1])
        module = schedule.mod
    if description is None:
        library = tvm.compile(module, target="llvm")
    else:
        library = tvm.compile(
            module,
            target=tvm.target.Target(dict(description.tvm_target)),
            tir_pipeline=cpu_pipeline(description),
        )
    result = tvm.runtime.tensor(np.zeros(size, traced[0].dtype))
    library(*(tvm.runtime.tensor(array) for array in arrays), result)
    return result.numpy(), traced[0]


@pytest.fixture(scope="session")
def both_domains() -> Callable[..., np.ndarray]:
    """Evaluate a function in both domains, and assert that they agree bit for bit.

    Called with the function and one ``(array, low, high)`` per operand; returns the result of the
    NumPy domain. The result must also lie in the interval that the traced value claims. `target`
    names one of ours, with its pipeline; by default it is any processor, with TVM's. Operands are
    of the given arithmetic.
    """

    def check(
        function: Callable[..., Any],
        *operands: tuple[np.ndarray, int, int],
        vectorise: bool = True,
        target: str | None = None,
        arithmetic: Arithmetic = VECTORS,
    ) -> np.ndarray:
        expected = np.asarray(function(*(array.astype(np.int64) for array, _, _ in operands)))
        got, traced = _compile_and_run(function, operands, vectorise, target, arithmetic)
        np.testing.assert_array_equal(got, expected)
        assert traced.low <= expected.min() and expected.max() <= traced.high
        return expected

    return check
