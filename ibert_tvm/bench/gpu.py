"""What is measured on a GPU only: the time that a run takes there."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from ..runtime import Library
    from ..runtime.cuda_context import CudaContext
    from ..runtime.cuda_engine import CudaEngine
    from ..runtime.metadata import FunctionRecord

_BURST_MS = 20.0
_MOST_RUNS = 1000
_LEAST_BURSTS = 3


def measure_gpu_time(library: Library, function: FunctionRecord, seconds: float) -> float:
    """Time a run on the GPU, copies of inputs and outputs included, the host's work not.

    Runs are queued one behind the other, in bursts of some milliseconds, and CUDA's events at both
    ends of a burst take the time. What a call's latency exceeds it by is the host's: checking
    inputs, padding them, launching, waiting, copying outputs.

    Parameters
    ----------
    library
        On a GPU; the function has been run before, and no other thread uses the library.
    function
        The function.
    seconds
        How long to measure, about.

    Returns
    -------
    float
        Milliseconds, the median of all bursts.
    """
    with library.contexts.lent() as lent:
        context = cast("CudaContext", lent)
        once = context.time_ms(function, 1)
        runs = max(1, min(_MOST_RUNS, round(_BURST_MS / max(once, 1e-3))))
        bursts: list[float] = []
        end = time.perf_counter() + seconds
        while len(bursts) < _LEAST_BURSTS or time.perf_counter() < end:
            bursts.append(context.time_ms(function, runs))
    return statistics.median(bursts)


def describe_gpu(library: Library) -> dict[str, object]:
    """The GPU that a library is loaded on, for the report: its name and what it is.

    Parameters
    ----------
    library
        On a GPU.

    Returns
    -------
    dict
        ``device``, ``gpu`` (name), ``architecture`` and ``multiprocessors``.
    """
    engine = cast("CudaEngine", library.engine)
    return {
        "device": engine.device,
        "gpu": engine.name,
        "architecture": engine.architecture,
        "multiprocessors": engine.multiprocessors,
    }
