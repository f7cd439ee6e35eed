"""The memory plan: a run of a library takes no memory from the system, once its pool is filled."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ibert_tvm.targets.export import ALIGNMENT
from ibert_tvm.targets.weights import weight_rows
from tests.processes import run_captured, without_torch
from tests.targets.encoder_library import build_encoder

# Counts allocations of a page and more between two calls of `count_allocations`. Preloaded, it
# replaces the allocator's functions in every library of the process.
_COUNTER = Path(__file__).with_name("count_allocations.c")


_RUN = """
import ctypes, json, sys, threading
from pathlib import Path
from types import SimpleNamespace
from ibert_tvm.common.file_seal import seal_digest
from ibert_tvm.runtime.metadata import (
    FunctionRecord, InputRecord, LibraryMetadata, ParameterRecord
)
from ibert_tvm.runtime.tvm_engine import TvmEngine
counter = ctypes.CDLL(None)
functions = [FunctionRecord(f"main_b{batch}_s{seq_len}", batch, seq_len)
             for batch, seq_len in json.loads(sys.argv[2])]
parameters = [ParameterRecord(r["name"], r["dtype"], tuple(r["shape"]), r["offset"])
              for r in json.loads(sys.argv[3])]
inputs = [InputRecord(name, "int32") for name in ("input_ids", "attention_mask")]
metadata = LibraryMetadata(Path(sys.argv[1]), {}, (), functions, inputs, parameters, (),
                           SimpleNamespace(image_size=None), {}, "", {}, 0, 0,
                           digest=seal_digest(Path(sys.argv[1])))
engine = TvmEngine(metadata)
context, taken = engine.create_context(), 0
for function in functions:
    context.inputs(function)
    counter.count_allocations(1)
    for _ in range(3):  # the pool is settled after the second run, or the third
        context.run(function, 1)
    first = counter.count_allocations(1)
    for _ in range(20):
        context.run(function, 1)
    print(first, counter.count_allocations(0))
    taken += first
others = [engine.create_context() for _ in range(int(sys.argv[4]))]
for function in functions:
    for other in others:
        other.inputs(function)
start = threading.Barrier(len(others) + 1)
def work(other):
    start.wait()
    for turn in range(200):
        other.run(functions[turn % len(functions)], 1)
    start.wait()  # a thread's own memory is given back when it ends
threads = [threading.Thread(target=work, args=(other,)) for other in others]
for thread in threads:
    thread.start()
counter.count_allocations(1)
for _ in range(2):
    start.wait()
print(taken, counter.count_allocations(0))
"""

CALLERS = 3


@pytest.mark.slow
def test_a_run_allocates_no_memory(tmp_path: Path) -> None:
    """Neither activations nor workspace nor outputs; the first runs of a shape fill the pool.

    Callers at the same time take as much again each, at most, however often they call.
    """
    command = ["gcc", "-O1", "-shared", "-fPIC", str(_COUNTER), "-o", "counter.so", "-ldl"]
    subprocess.run(command, cwd=tmp_path, check=True)
    shapes = [(1, 64), (2, 64)]
    build = build_encoder("x86-64", shapes=shapes, hidden=64, heads=2, feed_forward=128)
    library = build.export(tmp_path / "model.so")
    rows = [row.to_json() for row in weight_rows(build.parameters, ALIGNMENT)[0]]
    done = run_captured(
        [
            *(sys.executable, "-c", _RUN),
            *(str(library), json.dumps(shapes), json.dumps(rows), str(CALLERS)),
        ],
        env={**without_torch(), "LD_PRELOAD": str(tmp_path / "counter.so")},
    )
    assert done.returncode == 0, done.stderr
    counts = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    assert len(counts) == len(shapes) + 1
    alone, together = counts.pop()
    assert together <= CALLERS * alone
    for first, later in counts:
        assert first > 0, "the counter counts nothing"
        assert later == 0
