"""Callers at the same time get the integers of the specification, of whatever shapes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

import ibert_tvm as ibert
from tests.integration.whole_models import one_layer, random_inputs, reference
from tests.processes import run_captured

CALLERS = 4
SHAPES = [(1, 17), (3, 33)]
CALLS = [(1, 17), (3, 33), (1, 5), (3, 20), (7, 9)]

# A process of its own: the tests' processes keep TVM to one thread.
_RUN = """
import sys, threading
import numpy as np
import ibert_tvm
callers, counts = int(sys.argv[3]), map(int, sys.argv[4:])
calls = {}
with np.load(sys.argv[2]) as stored:
    for name in stored.files:
        call, _, part = name.partition("/")
        calls.setdefault(call, {})[part] = stored[name]
calls, failures, together = list(calls.values()), [], threading.Barrier(callers)
def work(library, number):
    try:
        together.wait(60)
        for turn in range(60):
            inputs = dict(calls[(number + turn) % len(calls)])
            expected = inputs.pop("expected")
            (output,) = library.run(**inputs, dequantize=False).values()
            np.testing.assert_array_equal(output.values, expected)
    except BaseException as error:
        failures.append(repr(error))
for threads in counts:
    library = ibert_tvm.load_library(sys.argv[1], num_threads=threads)
    library.engine.max_contexts = callers  # whatever this machine has
    if threads > 1:  # so that each has threads besides its own
        library.engine.pool._processors = threads * callers
    workers = [threading.Thread(target=work, args=(library, n)) for n in range(callers)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert failures == [], (threads, failures)
    assert len(library.contexts) <= callers
    library.close()
"""


@pytest.mark.slow_cases(1)
@pytest.mark.parametrize(
    ("runtime", "counts"), [pytest.param("tvm", (1, 2), marks=pytest.mark.slow), ("none", (1,))]
)
@pytest.mark.slow
def test_callers_of_all_shapes_do_not_disturb_each_other(
    runtime: str, counts: tuple[int, ...], tmp_path: Path
) -> None:
    quantized = one_layer()
    compiled = ibert.compile(quantized, target="host", shapes=SHAPES, runtime=runtime)
    library = compiled.export(tmp_path / "model.so")
    stored = {}
    for seed, (batch, length) in enumerate(CALLS):
        inputs = random_inputs(list(quantized.info.inputs), batch, length, 90, seed, padding=True)
        (expected,) = reference(quantized, inputs)
        parts = {**inputs, "expected": expected}
        stored |= {f"{batch}x{length}/{name}": array for name, array in parts.items()}
    np.savez(tmp_path / "calls.npz", **stored)
    arguments = [str(item) for item in (library, tmp_path / "calls.npz", CALLERS, *counts)]
    done = run_captured(
        [sys.executable, "-c", _RUN, *arguments], env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
