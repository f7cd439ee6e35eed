"""The most 8-bit multiply-accumulates per second that this machine can do.

The kernel that measures it is compiled by TVM in memory, so it needs no C compiler, and runs in
the thread pool that models run in.
"""

from __future__ import annotations

import importlib.util
import math
import time
from dataclasses import dataclass

import numpy as np

_STEPS = 1 << 16
_BURSTS = 8


@dataclass(frozen=True)
class Ceiling:
    """The measured limit.

    Attributes
    ----------
    instruction
        Which dot product was measured: the best one that this project has for the processor.
    gmacs
        10^9 multiply-accumulates per second, all threads together; None if it was not measured.
    missing
        Why it was not measured.
    """

    instruction: str = ""
    gmacs: float | None = None
    missing: str = ""

    def fraction(self, gmacs: float | None) -> float | None:
        """Share of the limit that a throughput is; None where either is not known."""
        return gmacs / self.gmacs if gmacs is not None and self.gmacs else None


def can_measure_ceiling() -> bool:
    """Whether TVM is installed, which compiles what is measured."""
    return importlib.util.find_spec("tvm") is not None


def measure_ceiling(threads: int, seconds: float = 0.3) -> Ceiling:
    """Measure the dot-product instruction of this machine with operands in registers.

    Parameters
    ----------
    threads
        Threads that compute at the same time.
    seconds
        How long to measure; the best burst of a few milliseconds counts.
    """
    if not can_measure_ceiling():
        return Ceiling(missing="TVM is not installed (extra compiler)")
    import tvm

    from ibert_tvm.schedules.peak import peak_kernel, peak_shapes
    from ibert_tvm.targets import TargetError, get_target
    from ibert_tvm.targets.pipeline import cpu_pipeline

    from ..runtime.threads import configure_threads

    try:
        description = get_target("host")
    except TargetError as error:
        return Ceiling(missing=error.why)
    dot = description.dot
    kernel = peak_kernel(dot, threads, _STEPS)
    if kernel is None:
        return Ceiling(missing="nothing measures the limit of this processor's instructions")
    executable = tvm.compile(
        tvm.IRModule({"main": kernel}),
        target=tvm.target.Target(dict(description.tvm_target)),
        tir_pipeline=cpu_pipeline(description),
    )
    run = executable.jit()["main"]
    shapes = peak_shapes(dot, threads)
    accumulators = np.arange(math.prod(shapes.accumulators), dtype=np.int32)
    operands = [
        np.full(shapes.lhs, 3, dot.lhs_dtype),
        np.full(shapes.rhs, 5, dot.rhs_dtype),
        accumulators.reshape(shapes.accumulators),
    ]
    arguments = [tvm.runtime.tensor(operand) for operand in operands]
    configure_threads(threads)
    best = float("inf")
    end = time.perf_counter() + seconds
    bursts = 0
    while bursts < _BURSTS or time.perf_counter() < end:
        start = time.perf_counter()
        run(*arguments)
        best = min(best, time.perf_counter() - start)
        bursts += 1
    return Ceiling(dot.name, shapes.products * _STEPS / best * 1e-9)
